//! Datagrams by LID and to groups of a subnet: what address vectors need, what receive buffers
//! begin with, who takes a datagram, and who gets a copy.

use std::time::Duration;

use super::net::{Net, end, handle, start};
use crate::common::{Plan, QKEY, Side};
use abi::ah::AhAttr;
use abi::cq::{Wc, status, wc_flags};
use engine::{Ah, SendWr, Service};
use sm::Config;
use subnet::switch::Ports;

const TEXT: &str = r#"
Switch 4 "S1"
[1] "H1"[1]
[2] "H2"[1]
[4] "S2"[4]

Switch 4 "S2"
[1] "H3"[1]

Hca 1 "H1"
Hca 1 "H2"
Hca 1 "H3"
"#;

/// Where the program's part of a receive buffer begins.
const GRH: usize = 40;
const ROOM: usize = 256;
/// Longer than a datagram is on its way.
const SOON: Duration = Duration::from_millis(1);

fn net(seed: u64) -> Net {
    Net::managed(seed, TEXT, 3, Config::default())
}

/// A queue pair that is ready, with receive buffers that hold other bytes.
fn ready(net: &mut Net, host: usize) -> Side {
    let side = net.side(host, &Plan::new(Service::Ud));
    start(&side);
    side.memory.pattern(0, 4 * ROOM, 7);
    (0..4).for_each(|wr_id| side.recv(wr_id, wr_id as usize * ROOM, ROOM));
    side
}

/// Sends a datagram with some bytes, and waits for it.
fn send(net: &mut Net, from: &Side, to: (&Ah, u32), qkey: u32, len: usize) {
    let ud = Some((to.0, to.1, qkey));
    from.post(&SendWr { ud, sges: &from.sge(4 * ROOM, len), ..SendWr::default() });
    net.simulation.run_for(SOON);
    assert_eq!(taken(&from.scq), [(0, status::SUCCESS)]);
}

/// The lengths and the states of what has completed.
fn taken(cq: &engine::Cq) -> Vec<(u32, u32)> {
    let mut wcs = [Wc::default(); 8];
    let some = cq.poll(&mut wcs).expect("a device");
    wcs[..some].iter().map(|wc| (wc.byte_len, wc.status)).collect()
}

#[test]
fn l14_a_queue_pair_takes_datagrams_and_group_messages_with_its_q_key_only() {
    let mut net = net(14);
    let (from, to) = (ready(&mut net, 1), ready(&mut net, 3));
    let group = group(&mut net, &from, &[&to]);
    let alone = handle(&from, net.lid(3), 0);
    for (ah, qpn) in [(&alone, to.qp.qpn()), (&group, 0xff_ffff)] {
        send(&mut net, &from, (ah, qpn), QKEY + 1, 10);
        assert_eq!(taken(&to.rcq), []);
        send(&mut net, &from, (ah, qpn), QKEY, 20);
        assert_eq!(taken(&to.rcq), [(GRH as u32 + 20, status::SUCCESS)]);
    }
}

#[test]
fn l17_an_address_vector_needs_the_lid_and_the_port_alone() {
    let mut net = net(17);
    let (from, to) = (ready(&mut net, 1), ready(&mut net, 3));
    let dlid = net.lid(3);
    let vector = AhAttr { dlid, sl: 2, port_num: 1, ..AhAttr::default() };
    assert_eq!((vector.is_global, vector.src_path_bits, vector.dgid), (0, 0, [0; 16]));
    let ah = from.pd.create_ah(&vector).expect("an address handle");
    send(&mut net, &from, (&ah, to.qp.qpn()), QKEY, 30);
    let mut wcs = [Wc::default(); 2];
    assert_eq!(to.rcq.poll(&mut wcs), Ok(1));
    let slid = net.lid(1);
    assert_eq!((wcs[0].slid, wcs[0].sl, wcs[0].src_qp), (slid, 2, from.qp.qpn()));
    // Another LID is another port.
    let bystander = ready(&mut net, 2);
    let other = handle(&from, net.lid(2), 0);
    send(&mut net, &from, (&other, bystander.qp.qpn()), QKEY, 31);
    assert_eq!((taken(&to.rcq), taken(&bystander.rcq).len()), (vec![], 1));
}

#[test]
fn l23_the_first_40_bytes_of_a_receive_buffer_are_for_the_grh_and_stay_without_one() {
    let mut net = net(23);
    let (from, to) = (ready(&mut net, 1), ready(&mut net, 3));
    let before = to.memory.get(0, 2 * ROOM);
    from.memory.pattern(4 * ROOM, 100, 9);
    let local = handle(&from, net.lid(3), 0);
    send(&mut net, &from, (&local, to.qp.qpn()), QKEY, 100);
    let mut wcs = [Wc::default(); 2];
    assert_eq!(to.rcq.poll(&mut wcs), Ok(1));
    assert_eq!((wcs[0].byte_len, wcs[0].wc_flags & wc_flags::GRH), (GRH as u32 + 100, 0));
    assert_eq!(to.memory.get(GRH, 100), from.memory.get(4 * ROOM, 100));
    assert_eq!(to.memory.get(0, GRH), before[..GRH], "no GRH was there to be written");
    let group = group(&mut net, &from, &[&to]);
    send(&mut net, &from, (&group, 0xff_ffff), QKEY, 100);
    assert_eq!(to.rcq.poll(&mut wcs), Ok(1));
    assert_eq!((wcs[0].byte_len, wcs[0].wc_flags & wc_flags::GRH), (GRH as u32 + 100, wc_flags::GRH));
    assert_eq!(to.memory.get(ROOM + 24, 16), MGID, "the destination of the GRH");
}

#[test]
fn l24_switches_repeat_a_group_message_and_an_adapter_gives_it_to_each_attached_queue_pair() {
    let mut net = net(24);
    let from = ready(&mut net, 1);
    let near = [ready(&mut net, 2), ready(&mut net, 2)];
    let far = [ready(&mut net, 3), ready(&mut net, 3)];
    let outsider = ready(&mut net, 3);
    let members: Vec<&Side> = near.iter().chain(&far).collect();
    let group = group(&mut net, &from, &members);
    send(&mut net, &from, (&group, 0xff_ffff), QKEY, 50);
    for member in members {
        assert_eq!(taken(&member.rcq), [(GRH as u32 + 50, status::SUCCESS)]);
    }
    assert_eq!(taken(&outsider.rcq), []);
    // One packet has entered each adapter.
    for host in ["H2", "H3"] {
        let received = net.model(|model| {
            let port = model.fabric().port(end(model, host, 1)).expect("a port");
            port.counters().received.multicast
        });
        assert_eq!(received, 1, "{host}");
    }
}

const MGID: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x24];

/// A group with these members. The switches' tables lead to every adapter. Returns the address of
/// the group for a sender.
fn group(net: &mut Net, from: &Side, members: &[&Side]) -> std::sync::Arc<Ah> {
    let mlid = abi::lid::of_group(&MGID);
    net.model(|model| {
        for (switch, ports) in [("S1", Ports::of([1, 2, 4])), ("S2", Ports::of([1, 4]))] {
            let node = model.id(switch).expect("a switch");
            model.fabric_mut().switch_mut(node).expect("a switch").multicast.insert(mlid, ports);
        }
    });
    members.iter().for_each(|member| member.qp.attach_mcast(&MGID, mlid).expect("attached"));
    let vector = AhAttr { dgid: MGID, dlid: mlid, is_global: 1, hop_limit: 1, port_num: 1, ..AhAttr::default() };
    from.pd.create_ah(&vector).expect("an address handle")
}
