//! Tests two hosts in one process, through the safe API: every service over the switch, with
//! packets that are lost, duplicated, reordered and corrupted.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use fabric::{Fabric, Faults};
use softhca::{Access, Completion, Context, Cq, DatagramQp, Gid, Message, Pd, Qp, Reliable, Retries};

#[path = "../../../../examples/pingpong.rs"]
#[allow(dead_code, reason = "its main function is for processes")]
mod pingpong;

/// Longer than any operation takes, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The next completion, which must be successful.
fn next(cq: &Cq) -> Completion {
    cq.wait_for(PATIENCE).expect("no error").expect("a completion").ok().expect("a success")
}

struct Side {
    pd: Pd,
    sent: Cq,
    received: Cq,
}

impl Side {
    fn new(context: &Context) -> Self {
        let cq = || context.cq(128).expect("a CQ");
        Self { pd: context.pd().expect("a PD"), sent: cq(), received: cq() }
    }

    fn datagrams(&self) -> DatagramQp {
        self.pd.datagrams(&self.sent).receive_cq(&self.received).build().expect("a QP")
    }
}

fn sides(fabric: &Fabric) -> (Side, Side) {
    (Side::new(&fabric.host(0).open().expect("a device")), Side::new(&fabric.host(1).open().expect("a device")))
}

fn connect(a: &Side, b: &Side) -> (Qp<Reliable>, Qp<Reliable>) {
    let make = |side: &Side| side.pd.reliable(&side.sent).receive_cq(&side.received).build().expect("a QP");
    let (left, right) = (make(a), make(b));
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"))
}

#[test]
fn the_ping_pong_between_two_hosts() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (near, far) = (fabric.host(0).open().expect("a device"), fabric.host(1).open().expect("a device"));
    let (here, there) = UnixStream::pair().expect("two ends");
    std::thread::scope(|threads| {
        let other = threads.spawn(|| pingpong::play(&far, there, false, 200).map_err(|error| error.to_string()));
        pingpong::play(&near, here, true, 200).expect("it plays");
        other.join().expect("no panic").expect("it plays");
    });
    assert!(fabric.switch().counts().packets >= 400);
}

#[test]
fn long_messages_arrive_whole_whatever_happens_to_packets() {
    for (mtu, faults) in [(4096, Faults::default()), (1024, Faults::loss(0.02, 7)), (4096, Faults::all(0.01, 8))] {
        let fabric =
            Fabric::builder().host("10.0.0.1").host("10.0.0.2").mtu(mtu).faults(faults).build().expect("agents");
        let (a, b) = sides(&fabric);
        let (left, right) = connect(&a, &b);
        let window = b.pd.expose(1 << 20, Access::ALL).expect("memory");
        for round in 0..5_u8 {
            let mut message = a.pd.buffer(300_000).expect("memory");
            message.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((at * 31) >> 4) as u8 ^ round);
            let expected = message.to_vec();
            right.receive(1, b.pd.buffer(300_000).expect("memory")).expect("posted");
            left.send(2, message).expect("posted");
            let came = next(&b.received);
            assert!(came.data() == expected, "round {round} over {mtu} with {faults:?}");
            let message = next(&a.sent).into_buffer();

            left.write(3, message, &window.token()).expect("posted");
            next(&a.sent);
            assert!(window.to_vec(..300_000) == expected);
            left.read(4, a.pd.buffer(300_000).expect("memory"), &window.token().part(..300_000).expect("inside"))
                .expect("posted");
            assert!(next(&a.sent).data() == expected);
            let word = window.token().part((1 << 19)..(1 << 19) + 8).expect("inside");
            left.fetch_add(5, a.pd.buffer(8).expect("memory"), &word, 1).expect("posted");
            assert_eq!(next(&a.sent).word(), Some(u64::from(round)));
        }
        let counts = fabric.switch().counts();
        assert!(faults == Faults::default() || counts.lost > 0, "{counts:?}");
    }
}

#[test]
fn datagrams_and_groups_between_hosts() {
    for group in ["ff12::77", "239.1.2.3"] {
        let fabric = Fabric::builder().host_with(["10.0.0.1", "fd00::1"]).host_with(["10.0.0.2", "fd00::2"]).build();
        let fabric = fabric.expect("agents");
        let (a, b) = sides(&fabric);
        let (left, right) = (a.datagrams(), b.datagrams());
        let group: Gid = group.parse().expect("a GID");
        right.join(group).expect("joined");
        (0..2).for_each(|id| right.receive(id, b.pd.buffer(4200).expect("memory")).expect("posted"));
        let mut message = a.pd.buffer(4096).expect("memory");
        message.fill(9);
        let expected = message.to_vec();
        left.send(1, Message::from(message).immediate(4), &left.peer(&right.endpoint()).expect("an address"))
            .expect("posted");
        let came = next(&b.received);
        assert_eq!((came.data() == expected, came.immediate()), (true, Some(4)));
        let source = came.source().expect("a datagram has one");
        assert_eq!((source.gid, source.qpn), (left.endpoint().gid, left.number()));
        assert_eq!(source.destination, "10.0.0.2".parse().expect("a GID"));

        left.send_inline(2, b"all", &left.group(group).expect("an address"), None).expect("posted");
        let came = next(&b.received);
        assert_eq!((came.data(), came.source().map(|source| source.destination)), (&b"all"[..], Some(group)));
    }
}

#[test]
fn a_pulled_cable_ends_in_retries_and_the_reason_says_so() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (a, b) = sides(&fabric);
    let make = |side: &Side| {
        let retries = Retries::new(2).expect("few");
        side.pd.reliable(&side.sent).timeout(Duration::from_millis(1)).retries(retries).build().expect("a QP")
    };
    let (left, right) = (make(&a), make(&b));
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, _right) = (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"));
    left.write_inline(1, b"", &softhca::RemoteRegion { addr: 0, rkey: 0, len: 0 }).expect("posted");
    next(&a.sent);
    fabric.host(1).disconnect();
    left.write_inline(2, b"", &softhca::RemoteRegion { addr: 0, rkey: 0, len: 0 }).expect("posted");
    let failed = a.sent.wait().expect("a completion");
    assert_eq!(failed.status(), softhca::Status::RetryExcErr);
    fabric.host(1).reconnect();
    let (left, _right) = connect(&a, &b);
    left.write_inline(3, b"", &softhca::RemoteRegion { addr: 0, rkey: 0, len: 0 }).expect("posted");
    next(&a.sent);
}

#[test]
fn nothing_of_the_machine_is_used() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (a, b) = sides(&fabric);
    let (left, _right) = connect(&a, &b);
    left.write_inline(1, b"", &softhca::RemoteRegion { addr: 0, rkey: 0, len: 0 }).expect("posted");
    next(&a.sent);
    let open = std::fs::read_dir("/proc/self/fd").expect("listed").flatten();
    let sockets: Vec<String> = open
        .filter_map(|entry| {
            std::fs::read_link(entry.path())
                .ok()?
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')
                .map(str::to_owned)
        })
        .collect();
    for table in ["udp", "udp6", "tcp", "tcp6", "netlink", "packet", "raw"] {
        let table = std::fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let found = line.split_whitespace().find(|word| sockets.iter().any(|socket| socket == word));
            // Small numbers belong to other columns.
            assert!(found.is_none_or(|inode| inode.len() < 4), "{line}");
        }
    }
}

#[test]
fn hosts_that_make_no_sense() {
    let start = |names: &[&str]| names.iter().fold(Fabric::builder(), |builder, name| builder.host(*name)).build();
    assert!(start(&["10.0.0.1", "10.0.0.1"]).expect_err("twice").to_string().contains("10.0.0.1"));
    assert!(start(&["ten"]).expect_err("no address").to_string().contains("ten"));
    assert!(Fabric::builder().host("10.0.0.1").mtu(1000).build().is_err());
}
