//! ALLOC_MW and DEALLOC_MW.

use crate::harness::{Client, EBUSY, EINVAL, Kind, Row, check, compare, digits};

#[test]
fn alloc_mw() {
    check(&Row {
        answer: "000000c0 00010000".into(),
        room: 8,
        handles: &[(8, Kind::Pd)],
        ..Row::new(16, |client| {
            format!("0e000000 0600 0200 0100000000000000 {} 01000000", client.make(Kind::Pd)).into()
        })
    });
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    for kind in ["00", "03", "ff"] {
        client.refused(&format!("0e000000 0600 0200 0100000000000000 {pd} {kind}000000").into(), EINVAL, kind);
    }
    client.done(&format!("0e000000 0600 0200 0100000000000000 {pd} 02000000"));
    client.refused(&format!("04000000 0300 0000 {pd}").into(), EBUSY, "a window is on it");
}

#[test]
fn dealloc_mw() {
    check(&Row {
        handles: &[(0, Kind::Mw)],
        ..Row::new(4, |client| format!("10000000 0300 0000 {}", client.make(Kind::Mw)).into())
    });
}

/// The tail has the window's latest key; the next key with its index is different.
#[test]
fn the_last_key_of_a_window_rests_too() {
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let alloc = format!("0e000000 0600 0200 0100000000000000 {pd} 02000000");
    let window = client.done(&alloc);
    compare(&window.bytes[4..], "00010000");
    client.done(&format!("10000000 0500 0000 {} 01000000 07010000", digits(&window.bytes[..4])));
    // Other indices come first, until enough of them are free.
    let again = (0..3000).find_map(|_| {
        let window = client.done(&alloc);
        client.done(&format!("10000000 0300 0000 {}", digits(&window.bytes[..4])));
        (window.bytes[5..] == [1, 0, 0]).then_some(window.bytes[4])
    });
    assert_eq!(again, Some(8));
}
