//! Device memory and importing: ALLOC_DM, FREE_DM, IMPORT_CONTEXT, IMPORT_PD, IMPORT_MR, IMPORT_DM.

use std::os::fd::OwnedFd;

use crate::harness::{Client, EBUSY, EINVAL, ENOENT, ENOMEM, Kind, Node, Request, Row, check, compare, digits, hex};

#[test]
fn alloc_dm() {
    check(&Row {
        answer: "000000d0 00000000 6400000000000000".into(),
        room: 16,
        fds: 1,
        ..Row::new(16, |_| alloc("6400000000000000", "03000000").into())
    });
    let mut client = Client::alone();
    for (length, align, errno, what) in [
        ("0000000000000000", "00000000", EINVAL, "no bytes"),
        ("4000000000000000", "0d000000", EINVAL, "more than a page's alignment"),
        ("0100100000000000", "00000000", ENOMEM, "more than there is"),
        ("ffffffffffffffff", "00000000", ENOMEM, "far more"),
    ] {
        client.refused(&alloc(length, align).into(), errno, what);
    }
    // The whole device memory, once, and again when it is free.
    let all = alloc("0000100000000000", "00000000");
    let dm = client.done(&all);
    client.refused(&alloc("0400000000000000", "00000000").into(), ENOMEM, "nothing is left");
    client.destroy(Kind::Dm, &digits(&dm.bytes[..4]));
    client.done(&all);
}

fn alloc(length: &str, align: &str) -> String {
    format!("d0000080 0200 0200 0100000000000000 0000 0000 00000000 {length} {align} 00000000")
}

#[test]
fn free_dm() {
    check(&Row { handles: &[(0, Kind::Dm)], ..Row::new(8, |client| free(&client.make(Kind::Dm)).into()) });
    let mut client = Client::alone();
    let (pd, dm) = (client.make(Kind::Pd), client.make(Kind::Dm));
    let mr = client.done(&region(&pd, &dm, "0000000000000000", "4000000000000000", "21000000"));
    client.refused(&free(&dm).into(), EBUSY, "an MR is on it");
    client.destroy(Kind::Mr, &digits(&mr.bytes[..4]));
    client.destroy(Kind::Dm, &dm);
}

fn free(dm: &str) -> String {
    format!("d1000080 0100 0000 0000000000000000 0000 0000 00000000 {dm} 00000000")
}

/// REG_MR with `DEVICE` in its tail.
fn region(pd: &str, dm: &str, start: &str, length: &str, access: &str) -> String {
    format!(
        "09000000 1200 0300 0100000000000000 {start} {length} 0000000000000000 {pd} {access} \
         01000000 04000000 0000000000000000 {dm} 00000000"
    )
}

#[test]
fn reg_mr_of_device_memory() {
    let mut client = Client::alone();
    let (pd, dm) = (client.make(Kind::Pd), client.make(Kind::Dm));
    for (start, length, access, dm, what) in [
        ("0000000000000000", "4000000000000000", "01000000", &dm, "not zero-based"),
        ("0000000000000000", "4100000000000000", "21000000", &dm, "too long"),
        ("4000000000000000", "0100000000000000", "21000000", &dm, "beyond the end"),
        ("ffffffffffffffff", "0200000000000000", "21000000", &dm, "it wraps"),
    ] {
        client.refused(&region(&pd, dm, start, length, access).into(), EINVAL, what);
    }
    let other = region(&pd, &pd, "0000000000000000", "4000000000000000", "21000000");
    client.refused(&other.into(), ENOENT, "no device memory");
    let mr = client.done(&region(&pd, &dm, "3000000000000000", "1000000000000000", "2f000000"));
    let mr = digits(&mr.bytes[..4]);
    let rereg = format!(
        "0b000000 0e00 0200 0100000000000000 {mr} 04000000 \
         0000000000000000 0000000000000000 0000000000000000 00000000 21000000"
    );
    client.refused(&rereg.into(), EINVAL, "cannot be changed");
}

/// A client, and the descriptor by which it is imported.
fn shared(node: &Node) -> (Client, OwnedFd) {
    let mut client = node.open(0);
    let mut reply = client.done("00000000 0400 0c00 0100000000000000");
    (client, reply.fds.pop().unwrap())
}

const IMPORT: &str = "d2000080 0100 0100 0100000000000000 0000 0000 00000000 00000000 00000000";

fn import(fds: Vec<OwnedFd>) -> Request {
    Request { bytes: hex(IMPORT), fds }
}

fn by_handle(number: &str, room: &str, handle: &str, second: &str) -> String {
    format!("{number}000080 0100 {room} 0100000000000000 0000 0000 00000000 {handle} {second}")
}

#[test]
fn import_context() {
    let node = Node::start();
    let (_owner, fd) = shared(&node);
    let (mut client, own) = shared(&node);
    let (_, gone) = shared(&node);
    for (fds, what) in [
        (vec![], "no descriptor"),
        (vec![fd.try_clone().unwrap(), fd.try_clone().unwrap()], "two"),
        (vec![own], "its own"),
        (vec![std::fs::File::open("/dev/null").unwrap().into()], "another file's"),
    ] {
        client.refused(&import(fds), EINVAL, what);
    }
    drop(gone);
    compare(&client.call(&import(vec![fd.try_clone().unwrap()])).bytes, "01000000 00000000");
    client.refused(&import(vec![fd]), -17, "a second time");
}

/// The owner, and a client that has imported its context.
fn pair(node: &Node) -> (Client, Client) {
    let (owner, fd) = shared(node);
    let mut client = node.context();
    assert_eq!(client.call(&import(vec![fd])).status, 0);
    (owner, client)
}

#[test]
fn import_pd() {
    let node = Node::start();
    let (mut owner, mut client) = pair(&node);
    let pd = owner.make(Kind::Pd);
    node.context().refused(&by_handle("d3", "0100", &pd, "00000000").into(), EINVAL, "nothing was imported");
    client.refused(&by_handle("d3", "0100", "00000000", "00000000").into(), ENOENT, "no such PD");
    let twin = client.done(&by_handle("d3", "0100", &pd, "00000000"));
    let twin = digits(&twin.bytes[..4]);
    owner.refused(&format!("04000000 0300 0000 {pd}").into(), EBUSY, "another context uses it");
    client.destroy(Kind::Pd, &twin);
    owner.destroy(Kind::Pd, &pd);
}

#[test]
fn import_mr() {
    let node = Node::start();
    let (mut owner, mut client) = pair(&node);
    let (pd, dm) = (owner.make(Kind::Pd), owner.make(Kind::Dm));
    let plain = owner.done(&format!(
        "09000000 0c00 0300 0100000000000000 0000100000000000 0010000000000000 0000200000000000 {pd} 0f000000"
    ));
    let plain = digits(&plain.bytes[..4]);
    let device = owner.done(&region(&pd, &dm, "1000000000000000", "2000000000000000", "21000000"));
    let device = digits(&device.bytes[..4]);
    let twin = digits(&client.done(&by_handle("d3", "0100", &pd, "00000000")).bytes[..4]);
    let own = client.make(Kind::Pd);
    let ask = |pd: &str, handle: &str| by_handle("d4", "0600", pd, handle);
    client.refused(&ask(&own, &plain).into(), EINVAL, "its PD was not imported");
    client.refused(&ask(&twin, &pd).into(), ENOENT, "no MR");
    // Both contexts are in one process, so the memory is reachable.
    let imported = client.done(&ask(&twin, &plain));
    compare(
        &imported.bytes,
        "02000020 00010000 0000100000000000 0010000000000000 0000200000000000 0f000000 00000000 0000000000000000",
    );
    let reply = client.done(&ask(&twin, &device));
    compare(
        &reply.bytes,
        "03000020 00020000 1000000000000000 2000000000000000 0000000000000000 21000000 04000000 4000000000000000",
    );
    assert_eq!((imported.fds.len(), reply.fds.len()), (0, 1));
    owner.refused(&format!("0d000000 0300 0000 {plain}").into(), EBUSY, "another context uses it");
    client.refused(&format!("04000000 0300 0000 {twin}").into(), EBUSY, "MRs are on it");
    for mr in [&imported, &reply] {
        client.destroy(Kind::Mr, &digits(&mr.bytes[..4]));
    }
    owner.destroy(Kind::Mr, &plain);
}

#[test]
fn import_dm() {
    let node = Node::start();
    let (mut owner, mut client) = pair(&node);
    let dm = owner.make(Kind::Dm);
    client.refused(&by_handle("d5", "0200", "00000000", "00000000").into(), ENOENT, "no such memory");
    let twin = client.done(&by_handle("d5", "0200", &dm, "00000000"));
    compare(&twin.bytes, "010000d0 00000000 4000000000000000");
    assert_eq!(twin.fds.len(), 1);
    let rest = alloc("e0ff0f0000000000", "00000000");
    owner.destroy(Kind::Dm, &dm);
    owner.refused(&rest.as_str().into(), ENOMEM, "the other still holds it");
    client.destroy(Kind::Dm, &digits(&twin.bytes[..4]));
    owner.done(&rest);
}

/// The remaining user keeps the key, and no other region gets it.
#[test]
fn an_imported_mr_outlives_its_context() {
    let node = Node::start();
    let (mut owner, mut client) = pair(&node);
    let mr = owner.make(Kind::Mr);
    // The PD that `make` created for it came just before.
    let twin = digits(&client.done(&by_handle("d3", "0100", "00000010", "00000000")).bytes[..4]);
    let imported = client.done(&by_handle("d4", "0600", &twin, &mr));
    drop(owner);
    let keys: Vec<Vec<u8>> = (0..1100)
        .map(|_| {
            let mr = client.done(&format!(
                "09000000 0c00 0300 0100000000000000 0000100000000000 0010000000000000 0000100000000000 {twin} 01000000"
            ));
            client.destroy(Kind::Mr, &digits(&mr.bytes[..4]));
            mr.bytes[5..8].to_vec()
        })
        .collect();
    assert!(!keys.contains(&imported.bytes[5..8].to_vec()));
    client.destroy(Kind::Mr, &digits(&imported.bytes[..4]));
}
