//! REG_MR, REREG_MR and DEREG_MR.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::harness::{Client, EBUSY, EINVAL, Kind, Request, Row, check, compare, hex};

#[test]
fn reg_mr() {
    check(&Row {
        answer: "00000020 00010000 00010000".into(),
        room: 12,
        handles: &[(32, Kind::Pd)],
        ..Row::new(40, |client| {
            let pd = client.make(Kind::Pd);
            format!(
                "09000000 0c00 0300 0100000000000000 0002100000000000 0010000000000000 0002300000000000 {pd} 0f000000"
            )
            .into()
        })
    });
}

#[test]
fn reg_mr_refuses_what_makes_no_sense() {
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    for (start, length, hca_va, access, what) in [
        ("0000100000000000", "0010000000000000", "0000100000000000", "02000000", "remote write without local write"),
        ("0000100000000000", "0010000000000000", "0000100000000000", "08000000", "remote atomic without local write"),
        ("0000100000000000", "0010000000000000", "0000100000000000", "00000080", "unknown right"),
        ("0100100000000000", "0010000000000000", "0000100000000000", "01000000", "start and hca_va differ modulo 4096"),
        ("00f0ffffffffffff", "0020000000000000", "00f0ffffffffffff", "01000000", "the address wraps"),
    ] {
        let request = format!("09000000 0c00 0300 0100000000000000 {start} {length} {hca_va} {pd} {access}");
        client.refused(&request.into(), EINVAL, what);
    }
}

fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("abi-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

#[test]
fn reg_mr_with_memory_attached() {
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let request = |flags: &str, offset: &str, fds: Vec<OwnedFd>| Request {
        bytes: hex(&format!(
            "09000000 1000 0300 0100000000000000 0000100000000000 0010000000000000 0000100000000000 {pd} 01000000 \
             01000000 {flags} {offset}"
        )),
        fds,
    };
    let reply = client.call(&request("01000000", "0010000000000000", vec![memfd(8192)]));
    compare(&reply.bytes, "00000020 00010000 00010000");
    assert_eq!(reply.status, 0);
    for (flags, offset, fds, what) in [
        ("01000000", "0000000000000000", vec![], "no descriptor"),
        ("00000000", "0000000000000000", vec![memfd(8192)], "a descriptor that nobody spoke of"),
        ("01000000", "0000000000000000", vec![memfd(8192), memfd(8192)], "two descriptors"),
        ("01000000", "0100000000000000", vec![memfd(8192)], "offset not a multiple of 4096"),
        ("01000000", "0020000000000000", vec![memfd(8192)], "beyond the end"),
        ("01000000", "00f0ffffffffffff", vec![memfd(8192)], "the end wraps"),
    ] {
        client.refused(&request(flags, offset, fds), EINVAL, what);
    }
}

/// Regions without memory of the program.
#[test]
fn reg_mr_of_everything_and_of_nothing() {
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let request = |start: &str, length: &str, access: &str, flags: &str| {
        format!(
            "09000000 1000 0300 0100000000000000 {start} {length} {start} {pd} {access} 01000000 {flags} 0000000000000000"
        )
    };
    let (zero, all) = ("0000000000000000", "ffffffffffffffff");
    client.done(&request(zero, all, "41000000", "00000000"));
    client.done(&request(zero, all, "01000000", "02000000"));
    for (start, length, access, flags, what) in [
        (zero, all, "01000000", "00000000", "all memory without on-demand paging"),
        (zero, all, "05000000", "02000000", "nothing for peers"),
        (zero, "0010000000000000", "01000000", "02000000", "a little of nothing"),
        ("0010000000000000", "ffefffffffffffff", "41000000", "00000000", "all memory but a page"),
    ] {
        client.refused(&request(start, length, access, flags).into(), EINVAL, what);
    }
}

#[test]
fn rereg_mr() {
    check(&Row {
        answer: "00020000 00020000".into(),
        room: 8,
        handles: &[(8, Kind::Mr), (40, Kind::Pd)],
        ..Row::new(48, |client| {
            let (mr, pd) = (client.make(Kind::Mr), client.make(Kind::Pd));
            format!(
                "0b000000 0e00 0200 0100000000000000 {mr} 07000000 \
                 0000200000000000 0020000000000000 0000200000000000 {pd} 01000000"
            )
            .into()
        })
    });
    let mut client = Client::alone();
    let mr = client.make(Kind::Mr);
    let request = |flags: &str, access: &str| {
        format!(
            "0b000000 0e00 0200 0100000000000000 {mr} {flags} \
             0000200000000000 0020000000000000 0000200000000000 00000000 {access}"
        )
    };
    client.refused(&request("00000000", "01000000").into(), EINVAL, "nothing to change");
    client.refused(&request("08000000", "01000000").into(), EINVAL, "unknown flag");
    client.refused(&request("04000000", "02000000").into(), EINVAL, "remote write without local write");
    compare(&client.done(&request("04000000", "01000000")).bytes, "00010000 00010000");
}

#[test]
fn dereg_mr() {
    check(&Row {
        handles: &[(0, Kind::Mr)],
        ..Row::new(4, |client| format!("0d000000 0300 0000 {}", client.make(Kind::Mr)).into())
    });
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let mr = client.done(&format!(
        "09000000 0c00 0300 0100000000000000 0000100000000000 0010000000000000 0000100000000000 {pd} 01000000"
    ));
    client.refused(&format!("04000000 0300 0000 {pd}").into(), EBUSY, "an MR is on it");
    client.destroy(Kind::Mr, &crate::harness::digits(&mr.bytes[..4]));
    client.destroy(Kind::Pd, &pd);
}
