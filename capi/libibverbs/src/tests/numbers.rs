//! Compares the public values of `verbs.h` with the values used here, name by name.

use crate::layout::{Op, QpEx};
use crate::object::get;
use crate::qp_ex;
use abi::layout::Constant;
use bytemuck::Zeroable;
use engine::Service;
use std::collections::HashMap;

/// The names and values that a program has if it was compiled with the newest header.
fn public() -> HashMap<&'static str, u64> {
    let rows = include_str!("numbers.txt").lines().filter(|line| !line.starts_with('#'));
    let pair = |row: &'static str| row.split_once(' ').map(|(name, value)| (name, value.parse::<i64>().unwrap()));
    rows.map(|row| pair(row).unwrap()).map(|(name, value)| (name, value.cast_unsigned())).collect()
}

/// Names that the kernel's header has, and that the public header lacks or calls differently.
const NOT_PUBLIC: [&str; 17] = [
    "IBV_QPT_SMI",
    "IBV_QPT_GSI",
    "IBV_QPT_RAW_IPV6",
    "IBV_QPT_RAW_ETHERTYPE",
    "IBV_QPT_XRC_INI",
    "IBV_QPT_XRC_TGT",
    "IBV_QP_CREATE_BLOCK_MULTICAST_LOOPBACK",
    "IBV_WR_RDMA_READ_WITH_INV",
    "IBV_WR_MASKED_CMP_AND_SWP",
    "IBV_WR_MASKED_FETCH_AND_ADD",
    "IBV_DEVICE_MW_TYPE_2A",
    "IBV_DEVICE_MW_TYPE_2B",
    "IBV_DEVICE_RAW_SCATTER_FCS",
    "IBV_DEVICE_FLUSH_GLOBAL",
    "IBV_DEVICE_FLUSH_PERSISTENT",
    "IBV_DEVICE_ATOMIC_WRITE",
    "IBV_ATOMIC_GLOBAL",
];

#[test]
fn every_value_is_that_of_the_public_header() {
    let modules: [(&str, &[Constant]); 21] = [
        ("IBV_ACCESS_", abi::mr::access::ALL),
        ("IBV_MW_", abi::mr::mw_type::ALL),
        ("IBV_REREG_MR_CHANGE_", abi::mr::rereg::ALL),
        ("IBV_QPT_", abi::qp::kind::ALL),
        ("IBV_QPS_", abi::qp::state::ALL),
        ("IBV_QP_", abi::qp::attr::ALL),
        ("IBV_MIG_", abi::qp::migration::ALL),
        ("IBV_QP_CREATE_", abi::qp::create_flags::ALL),
        ("IBV_WC_", abi::cq::status::ALL),
        ("IBV_WC_", abi::cq::opcode::ALL),
        ("IBV_WC_", abi::cq::wc_flags::ALL),
        ("IBV_WR_", abi::post::opcode::ALL),
        ("IBV_SEND_", abi::post::send_flags::ALL),
        ("IBV_EVENT_", abi::event::kind::ALL),
        ("IBV_SRQ_", abi::srq::attr::ALL),
        ("IBV_ODP_SUPPORT_", abi::device::odp_service::ALL),
        ("IBV_DEVICE_", abi::device::cap::ALL),
        ("IBV_ATOMIC_", abi::device::atomic_cap::ALL),
        ("IBV_PORT_", abi::device::port_state::ALL),
        ("IBV_", abi::device::mtu::ALL),
        ("IBV_LINK_LAYER_", abi::device::link_layer::ALL),
    ];
    let public = public();
    let mut missing = Vec::new();
    for (prefix, constants) in modules {
        for constant in constants {
            let name = format!("{prefix}{}", constant.name);
            match public.get(&*name) {
                Some(value) => assert_eq!(*value, constant.value, "{name}"),
                None => missing.push(name),
            }
        }
    }
    assert_eq!(missing, NOT_PUBLIC);
}

/// Asks for each operation separately, by its public flag, and checks which function is then set.
#[test]
fn every_extended_operation_has_the_flag_of_the_public_header() {
    let public = public();
    let slots = |flags: u64| -> [Op; 13] {
        let mut qp = QpEx::zeroed();
        let qp = &raw mut qp;
        qp_ex::fill_functions(qp, Service::Rc, flags);
        [
            get!(qp, wr_rdma_write),
            get!(qp, wr_rdma_write_imm),
            get!(qp, wr_send),
            get!(qp, wr_send_imm),
            get!(qp, wr_rdma_read),
            get!(qp, wr_atomic_cmp_swp),
            get!(qp, wr_atomic_fetch_add),
            get!(qp, wr_local_inv),
            get!(qp, wr_bind_mw),
            get!(qp, wr_send_inv),
            get!(qp, wr_send_tso),
            get!(qp, wr_flush),
            get!(qp, wr_atomic_write),
        ]
    };
    let none = slots(0);
    let names = "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD \
                 LOCAL_INV BIND_MW SEND_WITH_INV TSO FLUSH ATOMIC_WRITE";
    for (index, name) in names.split_whitespace().enumerate() {
        let flag = public[&*format!("IBV_QP_EX_WITH_{name}")];
        let offered = qp_ex::check(Service::Rc, flag).is_ok();
        assert_eq!(offered, name != "TSO", "{name}");
        let asked = slots(flag);
        for slot in 0..none.len() {
            assert_eq!(asked[slot] != none[slot], slot == index && offered, "{name}, slot {slot}");
        }
    }
}
