//! The tables of ports, the completion vectors, and what else a device reports besides its limits.

use std::collections::HashSet;

use abi::errno::Errno;
use engine::CqSpec;

use super::direct::Solo;
use super::refused;

#[test]
fn a_gid_table_that_is_full() {
    let names: Vec<String> = (1..=70).map(|index| format!("10.0.1.{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let engine = Solo::new(&names).engine();
    let length = engine.query_port(1).expect("a port").gid_tbl_len;
    let gids: HashSet<[u8; 16]> = (0..length).map(|index| engine.query_gid(1, index).expect("a GID")).collect();
    assert_eq!(gids.len() as u32, length, "each another one");
    assert!(!gids.contains(&[0; 16]), "and none is empty");
    for index in 0..length {
        assert_eq!(engine.gid_entry(1, index).expect("an entry").gid_index, index);
    }
    refused(engine.gid_entry(1, length), Errno::EINVAL, &["GID index", &length.to_string()]);
    refused(engine.query_gid(1, length), Errno::EINVAL, &["GID index", &length.to_string()]);
    refused(engine.query_gid(1, u32::MAX), Errno::EINVAL, &["GID index"]);
}

#[test]
fn partition_keys_and_ports() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let device = engine.query_device().expect("limits");
    for number in 1..=device.phys_port_cnt {
        let length = engine.query_port(number).expect("a port").pkey_tbl_len;
        assert_eq!(length, device.max_pkeys);
        for index in 0..u32::from(length) {
            assert_ne!(engine.query_pkey(number, index).expect("a key"), 0);
        }
        refused(engine.query_pkey(number, u32::from(length)), Errno::EINVAL, &["P_Key index"]);
    }
    for number in [0, device.phys_port_cnt + 1, u8::MAX] {
        refused(engine.query_port(number), Errno::EINVAL, &["has no port", &number.to_string()]);
    }
}

#[test]
fn completion_vectors() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let vectors = engine.comp_vectors();
    assert!(vectors >= 1);
    let make = |comp_vector| engine.create_cq(&CqSpec { cqe: 1, channel: None, comp_vector, cookie: 0 });
    let cqs: Vec<_> = (0..vectors).map(|vector| make(vector).expect("a CQ")).collect();
    for vector in [vectors, u32::MAX] {
        refused(make(vector), Errno::EINVAL, &["completion vector", &vectors.to_string()]);
    }
    for cq in &cqs {
        cq.destroy().expect("destroyed");
    }
}
