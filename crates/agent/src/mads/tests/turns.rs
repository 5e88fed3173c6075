//! Two users of one agent: the datagrams of a user who floods it do not keep the other one from
//! getting answers. What is counted are datagrams, and not time.

use mad::topology::Topology;

use super::*;

const FLOODER: u32 = 2000;
/// Requests of the flooder, whose retries are all due at the same time.
const FLOOD: usize = 500;
/// Requests of the other user.
const REQUESTS: u64 = 40;
/// A LID that nobody has.
const NOBODY: u16 = 0x700;

/// Sends one request after the other while the flooder's retries wait, and counts how many of these
/// are carried until the answer is there.
#[track_caller]
fn requests_are_answered(mut bench: Bench, at: PortId, class: u8, qpn: u8, attribute: u16) {
    let flooders: Vec<(Program, u32)> = (0..CLIENTS)
        .map(|_| {
            let flooder = bench.open_as(at, FLOODER);
            let id = bench.register(&flooder, 1, CLASS_SA, 0).expect("registered");
            (flooder, id)
        })
        .collect();
    let request = Header {
        base_version: BASE_VERSION,
        class: CLASS_SA,
        class_version: 2,
        method: METHOD_GET,
        ..Header::default()
    };
    for transaction in 0..FLOOD as u64 {
        let mut mad = [0; MAD_LEN];
        Header { transaction, ..request }.emit_to(&mut mad);
        let (flooder, id) = &flooders[transaction as usize % CLIENTS];
        let to = UserMad { id: *id, timeout_ms: 1, retries: 1000, lid: NOBODY, qpn: 1, ..UserMad::default() };
        bench.write(flooder, to, &mad).expect("sent");
    }
    let victim = bench.open_as(at, USER);
    let id = bench.register(&victim, qpn, class, 0).expect("registered");
    let (mut answers, mut carried) = (0, 0);
    for transaction in 0..REQUESTS {
        bench.pass(Duration::from_millis(100));
        bench.mads.on_time(&mut bench.world);
        let waiting = bench.mads.travelling.waiting(FLOODER);
        assert!(waiting > BATCH, "{waiting} datagrams are no flood");
        let lid =
            if qpn == 0 { PERMISSIVE_LID } else { bench.world.devices[at.device].ports[0].lid.expect("a LID").number };
        let to =
            UserMad { id, timeout_ms: 50_000, lid, qpn: qpn.into(), qkey: wire::mad::GSI_QKEY, ..UserMad::default() };
        let mut mad = smp(class, METHOD_GET, attribute).to_mad();
        if qpn == 1 {
            mad = [0; MAD_LEN];
            Header {
                base_version: BASE_VERSION,
                class,
                class_version: 1,
                method: METHOD_GET,
                attribute,
                ..Header::default()
            }
            .emit_to(&mut mad);
            // PortSelect.
            mad[wire::perf::DATA + 1] = 1;
        }
        mad[8..16].copy_from_slice(&transaction.to_be_bytes());
        bench.write(&victim, to, &mad).expect("sent");
        let (header, message) = bench.read(&victim).expect("the answer is there when the request is carried");
        assert_eq!((header.status, message[3]), (0, METHOD_GET | RESPONSE));
        answers += 1;
        carried += waiting.saturating_sub(bench.mads.travelling.waiting(FLOODER));
    }
    assert_eq!(answers, REQUESTS);
    assert!(carried <= REQUESTS as usize * BATCH, "{carried} datagrams of the flooder for {answers} answers");
}

#[test]
fn a_flood_of_one_user_leaves_answers_of_subnet_management_to_the_others() {
    requests_are_answered(Bench::new(), A, CLASS_SUBN_DIRECTED, 0, NodeInfo::ATTRIBUTE);
}

#[test]
fn a_flood_of_one_user_leaves_answers_of_performance_management_to_the_others() {
    requests_are_answered(Bench::new(), A, CLASS_PM, 1, PortCounters::ATTRIBUTE);
}

#[test]
fn a_flood_of_one_user_in_a_topology_leaves_answers_to_the_others() {
    let text = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";
    let topology = Topology::from_text(text).expect("valid");
    let devices = crate::topology::devices(&topology).expect("adapters");
    let mut bench =
        Bench::of(Config { devices, topology: Some(topology), has_subnet_manager: true, ..Config::default() });
    let mut steps = 0;
    while bench.world.devices[0].ports[0].state != abi::device::port_state::ACTIVE {
        steps += 1;
        assert!(steps < 10_000, "the subnet does not come up");
        bench.pass(Duration::from_millis(20));
        bench.mads.on_time(&mut bench.world);
    }
    requests_are_answered(bench, A, CLASS_SUBN_DIRECTED, 0, NodeInfo::ATTRIBUTE);
}
