//! ATTACH_MCAST and DETACH_MCAST.

use crate::harness::{Client, EBUSY, EINVAL, Kind, Row, check};

const GROUP: &str = "ff12000000000000 0000000000000abc";
const IPV4_GROUP: &str = "00000000000000000000ffff e0010203";

#[test]
fn attach_mcast() {
    check(&Row {
        handles: &[(16, Kind::UdQp)],
        ..Row::new(24, |client| {
            let qp = client.make(Kind::UdQp);
            format!("1e000000 0800 0000 {GROUP} {qp} 0000 0000").into()
        })
    });
    let mut client = Client::alone();
    let (qp, rc) = (client.make(Kind::UdQp), client.make(Kind::Qp));
    client.done(&format!("1e000000 0800 0000 {GROUP} {qp} 0000 0000"));
    client.done(&format!("1e000000 0800 0000 {GROUP} {qp} 0000 0000"));
    client.done(&format!("1e000000 0800 0000 {IPV4_GROUP} {qp} 0000 0000"));
    client.refused(&format!("1e000000 0800 0000 {GROUP} {rc} 0000 0000").into(), EINVAL, "not UD");
    let unicast = "fe80000000000000 02000000000000b1";
    client.refused(&format!("1e000000 0800 0000 {unicast} {qp} 0000 0000").into(), EINVAL, "no multicast GID");
    let destroy = format!("1b000000 0600 0100 0100000000000000 {qp} 00000000");
    client.refused(&destroy.as_str().into(), EBUSY, "attached");
    for group in [GROUP, IPV4_GROUP] {
        client.done(&format!("1f000000 0800 0000 {group} {qp} 0000 0000"));
    }
    client.done(&destroy);
}

#[test]
fn detach_mcast() {
    check(&Row {
        handles: &[(16, Kind::UdQp)],
        ..Row::new(24, |client| {
            let qp = client.make(Kind::UdQp);
            client.done(&format!("1e000000 0800 0000 {GROUP} {qp} 0000 0000"));
            format!("1f000000 0800 0000 {GROUP} {qp} 0000 0000").into()
        })
    });
    let mut client = Client::alone();
    let qp = client.make(Kind::UdQp);
    client.refused(&format!("1f000000 0800 0000 {GROUP} {qp} 0000 0000").into(), EINVAL, "not a member");
}
