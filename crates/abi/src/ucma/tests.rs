//! Tests of the node's records: sizes as in Linux's header, headers, addresses.

use super::connection::{ConnParam, Connect, EventAnswer, GetEvent, UdParam};
use super::id::{CreateId, CreateIdAnswer};
use super::sockaddr::Sockaddr;
use super::*;

#[test]
fn layouts_have_neither_gaps_nor_overlaps() {
    let rows = ROWS.iter().flat_map(|row| [row.request, row.answer]).flatten();
    for layout in rows.chain(PARTS.iter().copied()) {
        let mut end = 0;
        for field in layout.fields {
            assert_eq!(field.offset, end, "{}.{}", layout.name, field.name);
            end += field.size;
        }
        assert_eq!(end, layout.size, "{}", layout.name);
    }
}

#[test]
fn every_command_has_a_row() {
    for constant in command::ALL {
        let rows: Vec<_> = ROWS.iter().filter(|row| u64::from(row.number) == constant.value).collect();
        assert_eq!(rows.len(), 1, "{}", constant.name);
        assert_eq!(rows[0].name, constant.name);
    }
}

#[test]
fn a_command_as_bytes() {
    let body = CreateId { uid: 5, response: 1, ps: port_space::TCP, qp_type: 2, ..CreateId::default() };
    let bytes = build(command::CREATE_ID, &body, &[], 4);
    #[rustfmt::skip]
    assert_eq!(bytes, [
        0, 0, 0, 0, 24, 0, 4, 0,
        5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 1, 2, 0, 0, 0, 0, 0,
    ]);
    let admitted = admit(&bytes).expect("well formed");
    assert_eq!(admitted.number(), command::CREATE_ID);
    assert_eq!(admitted.body::<CreateId>(), body);
    assert_eq!(admitted.answer(&CreateIdAnswer { id: 7 }), [7, 0, 0, 0]);
}

#[test]
fn malformed_ucma_commands_are_refused() {
    let good = build(command::GET_EVENT, &GetEvent::default(), &[], 336);
    assert!(admit(&good).is_ok());
    assert_eq!(admit(&good[..7]).err(), Some(Errno::EINVAL), "no header");
    assert_eq!(admit(&good[..15]).err(), Some(Errno::EINVAL), "shorter than it says");
    assert_eq!(admit(&build(command::GET_EVENT, &GetEvent::default(), &[], 323)).err(), Some(Errno::ENOSPC));
    assert_eq!(admit(&build(25, &GetEvent::default(), &[], 336)).err(), Some(Errno::EINVAL), "unknown");
    assert_eq!(admit(&build(command::GET_OPTION, &GetEvent::default(), &[], 0)).err(), Some(Errno::ENOSYS));
    let short = [&[6, 0, 0, 0, 23, 1, 0, 0][..], &[0; 279]].concat();
    assert_eq!(admit(&short).err(), Some(Errno::EINVAL), "a body that is too short");
    let old = [&[6, 0, 0, 0, 24, 1, 0, 0][..], &[9; 280]].concat();
    let connect: Connect = admit(&old).expect("without ECE").body();
    assert_eq!((connect.id, connect.ece.vendor_id), (0x0909_0909, 0));
}

#[test]
fn both_forms_of_an_event_are_in_the_same_place() {
    let conn = ConnParam { qp_num: 3, private_data: [7; 256], private_data_len: 9, valid: 1, ..ConnParam::default() };
    assert_eq!(UdParam::from_conn(&conn).as_conn(), conn);
    assert_eq!(size_of::<EventAnswer>(), 336);
}

#[test]
fn addresses_go_both_ways() {
    let v4: Sockaddr = Sockaddr::Ip("192.0.2.1:7471".parse().expect("an address"));
    let (bytes, len) = v4.emit();
    assert_eq!(bytes[..16], [2, 0, 0x1d, 0x2f, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((len, Sockaddr::parse(&bytes)), (16, Ok(Some(v4))));
    let v6 = Sockaddr::Ip("[2001:db8::1]:7471".parse().expect("an address"));
    let (bytes, len) = v6.emit();
    assert_eq!((len, Sockaddr::parse(&bytes[..28])), (28, Ok(Some(v6))));
    assert_eq!(v6.short().bytes(), &bytes[..28]);
    let ib = Sockaddr::Ib(sockaddr::SockaddrIb { family: 27, sid: [1; 8], ..Default::default() });
    let (bytes, len) = ib.emit();
    assert_eq!((len, Sockaddr::parse(&bytes)), (48, Ok(Some(ib))));
    assert_eq!(Sockaddr::parse(&[]), Ok(None));
    assert_eq!(Sockaddr::parse(&[0; 128]), Ok(None));
    assert_eq!(Sockaddr::parse(&[2, 0, 1]), Err(Errno::EINVAL));
    assert_eq!(Sockaddr::parse(&[1, 0, 0, 0]), Err(Errno::EAFNOSUPPORT));
}

#[test]
fn a_command_ends_with_its_tail() {
    let bytes = build(command::GET_EVENT, &GetEvent::default(), &[7; 5], 336);
    let len = size_of::<GetEvent>() + 5;
    assert_eq!((bytes.len(), bytes[4..6].to_vec()), (8 + len, (len as u16).to_ne_bytes().to_vec()));
    let admitted = admit(&bytes).expect("well formed");
    assert_eq!((admitted.number(), admitted.tail::<GetEvent>()), (command::GET_EVENT, &[7; 5][..]));
    let short = build(command::GET_EVENT, &GetEvent::default(), &[], 336);
    assert_eq!(admit(&short).expect("well formed").tail::<GetEvent>(), &[0; 0][..]);
}
