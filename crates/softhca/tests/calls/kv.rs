//! The key-value store of examples/, inside one process.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric::Fabric;
use softhca::Context;
use softhca::cm::Listener;

#[path = "../../../../examples/kv.rs"]
#[allow(dead_code, reason = "its main function is for processes")]
mod example;

use example::Client;

/// A server on the second host, and a device of the first.
fn served() -> (Fabric, Context, SocketAddr) {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (here, there) = (fabric.host(0).open().expect("a device"), fabric.host(1).open().expect("a device"));
    let listener = Listener::bind(&there, "10.0.0.2:0".parse().expect("an address")).expect("it listens");
    let address = listener.local_addr();
    // It ends with the process.
    std::thread::spawn(move || example::serve(&there, listener));
    (fabric, here, address)
}

#[test]
fn a_stored_value_is_read_by_every_client() {
    let (_fabric, here, address) = served();
    let (mut one, mut other) =
        (Client::connect(&here, address).expect("connected"), Client::connect(&here, address).expect("connected"));
    assert_eq!(one.get(b"colour").expect("read"), None);
    for value in ["red", "green", ""] {
        one.put(b"colour", value.as_bytes()).expect("stored");
        assert_eq!(other.get(b"colour").expect("read").as_deref(), Some(value.as_bytes()));
    }
    for number in 0..500_u32 {
        other.put(format!("key {number}").as_bytes(), &number.to_le_bytes()).expect("stored");
    }
    for number in 0..500_u32 {
        let value = one.get(format!("key {number}").as_bytes()).expect("read");
        assert_eq!(value.as_deref(), Some(&number.to_le_bytes()[..]), "{number}");
    }
    assert_eq!(one.get(b"key 500").expect("read"), None);
    for (key, value) in [(&b""[..], &b"x"[..]), (&[7; 100], &[7; 19]), (&[7; 300], b"")] {
        let error = one.put(key, value).expect_err("too long, or nothing");
        assert!(error.to_string().contains("do not fit"), "{error}");
    }
    one.put(&[7; 100], &[7; 18]).expect("it just fits");
    assert_eq!(other.get(&[7; 100]).expect("read").expect("there"), [7; 18]);
}

#[test]
fn a_reader_never_sees_half_of_a_value() {
    let (_fabric, here, address) = served();
    let over = AtomicBool::new(false);
    let value = |number: u8| [number; 60];
    Client::connect(&here, address).expect("connected").put(b"busy", &value(0)).expect("stored");
    std::thread::scope(|threads| {
        for writer in [1_u8, 2] {
            let mut client = Client::connect(&here, address).expect("connected");
            let over = &over;
            threads.spawn(move || {
                for number in (writer..=250).step_by(2).cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    client.put(b"busy", &value(number)).expect("stored");
                }
            });
        }
        let mut reader = Client::connect(&here, address).expect("connected");
        let mut seen = HashSet::new();
        while seen.len() < 50 {
            let found = reader.get(b"busy").expect("read").expect("it is always there");
            assert_eq!(found, value(found[0]), "torn");
            seen.insert(found[0]);
        }
        over.store(true, Ordering::Relaxed);
    });
}
