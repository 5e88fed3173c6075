//! Management datagrams that no agent of this fabric has sent, with all that a stranger can make
//! fit.

use std::time::Duration;

use fabric::Fabric;
use softhca::Gid;
use softhca::cm::{Connector, Listener};
use wire::cm::{Attribute, CLASS_VERSION};
use wire::icrc::Envelope;
use wire::mad::{BASE_VERSION, CLASS_CM, GSI_QKEY, Header, MAD_LEN, METHOD_SEND};
use wire::{Deth, Headers, Opcode, Operation, Psn, Qpn, Transport};

use crate::Feed;

const PORT: u16 = 0xc123;
const MOST: usize = 32;
/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(bytes: &[u8]) {
    let fabric = Fabric::two_hosts().expect("two hosts");
    let device = fabric.host(1).open().expect("a device");
    let _listener = Listener::bind(&device, "10.0.0.2:16".parse().expect("an address")).expect("it listens");
    let [from, to] = [0, 1].map(|host| Gid::from(fabric.host(host).addresses()[0]));
    let mut feed = Feed(bytes);
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let headers = Headers {
            opcode: Opcode::new(Transport::Ud, Operation::SendOnly),
            psn: Psn::new(1),
            dest_qp: Qpn::new(1),
            pkey: 0xffff,
            deth: Deth { qkey: GSI_QKEY, src_qp: Qpn::new(1) },
            ..Headers::default()
        };
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet).expect("room");
        packet.extend_from_slice(&mad(&mut feed));
        let icrc = Envelope::new(&from.0, &to.0, PORT).icrc(0, &packet);
        packet.extend_from_slice(&icrc);
        assert!(fabric.switch().inject(from, PORT, to, &packet));
    }
    meet(&fabric, 17);
}

/// A message: which one, and how much of it is given; or any datagram.
fn mad(feed: &mut Feed<'_>) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let (which, at, len) = (feed.byte(), usize::from(feed.byte()), usize::from(feed.byte()));
    let bytes = feed.take(len.min(MAD_LEN - at));
    mad[at..at + bytes.len()].copy_from_slice(bytes);
    if let Some(attribute) = Attribute::from_u16(0x10 + u16::from(which % 16)) {
        let header = Header {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction: u64::from(which / 16),
            attribute: attribute as u16,
            modifier: 0,
        };
        header.emit_to(&mut mad);
    }
    mad
}

/// Programs of the two hosts connect and talk.
pub(super) fn meet(fabric: &Fabric, port: u16) {
    let (here, there) = (fabric.host(0).open().expect("a device"), fabric.host(1).open().expect("a device"));
    let address = std::net::SocketAddr::new(fabric.host(1).addresses()[0], port);
    let listener = Listener::bind(&there, address).expect("it listens");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (pd, cq) = (there.pd().expect("a PD"), there.cq(4).expect("a CQ"));
            let incoming = listener.accept().expect("a request").prepare(pd.reliable(&cq)).expect("a queue pair");
            incoming.receive(1, pd.buffer(8).expect("a buffer")).expect("posted");
            let connection = incoming.accept(b"").expect("a connection");
            let completion = cq.wait_for(PATIENCE).expect("no failure").expect("it comes");
            assert_eq!(completion.ok().expect("well").data(), b"hello");
            drop(connection);
        });
        let (pd, cq) = (here.pd().expect("a PD"), here.cq(4).expect("a CQ"));
        let route = Connector::new(&here).resolve(address).expect("a route");
        let connection = route.prepare(pd.reliable(&cq)).expect("a queue pair").connect(b"").expect("a connection");
        connection.send_inline(1, b"hello", None).expect("posted");
        server.join().expect("served");
    });
}
