//! The flags of a packet's headers, parsed and encoded. The headers themselves are compared with
//! captured packets and with literal bytes in the other tests.

use softhca_wire::{Headers, MAX_LEN, Opcode, Operation, Psn, Transport};

#[test]
fn every_flag_comes_back_alone() {
    let opcode = Opcode::new(Transport::Rc, Operation::SendOnly);
    let none = Headers { opcode, psn: Psn::new(7), pkey: 0xffff, ..Headers::default() };
    for headers in [
        none,
        Headers { migrated: true, ..none },
        Headers { solicited: true, ..none },
        Headers { ack_req: true, ..none },
        Headers { pad: 2, ..none },
    ] {
        let mut bytes = [0xee; MAX_LEN];
        let len = headers.emit(&mut bytes).expect("room");
        assert_eq!(Headers::parse(&bytes[..len]), Ok(headers));
        assert!(!headers.is_empty(), "it has a BTH");
    }
}
