//! Every command that is always refused, in both profiles.

use crate::harness::{EINVAL, ENOSYS, EOPNOTSUPP, Node};

#[test]
fn refused_commands() {
    let node = Node::start();
    for profile in [0, 1] {
        let mut client = node.open(profile);
        let legacy = |number: u8| format!("{number:02x}000000 0400 0300 0100000000000000");
        client.refused(&legacy(6).into(), EINVAL, "before GET_CONTEXT");
        client.done("00000000 0400 0c00 0100000000000000");
        for number in [6, 7, 10, 12, 15, 22] {
            client.refused(&legacy(number).into(), ENOSYS, &format!("command {number}"));
        }
        if profile == 1 {
            for number in 37..=40 {
                client.refused(&legacy(number).into(), EOPNOTSUPP, &format!("command {number} of OFED"));
            }
        }
        for number in 41..=44 {
            let errno = if profile == 1 { EOPNOTSUPP } else { EINVAL };
            client.refused(&legacy(number).into(), errno, &format!("command {number} in profile {profile}"));
        }
        for number in 50..=56_u8 {
            let request = format!("{number:02x}000080 0100 0100 0100000000000000 0000 0000 00000000 0000000000000000");
            client.refused(&request.into(), EOPNOTSUPP, &format!("extended command {number}"));
        }
    }
}
