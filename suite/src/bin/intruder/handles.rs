//! Tries to use other users' objects: every handle that could exist, with every command that takes
//! a handle.

use std::path::Path;

use abi::command::{extended, legacy, number};
use abi::cq::DestroyCq;
use abi::layout::Record;
use abi::mr::{DeregMr, RegMr};
use abi::pd::DeallocPd;
use abi::qp::{DestroyQp, ModifyQp, QueryQp, attr, state};
use abi::wire::{WireOpen, WireOut, WireSockets, WireSocketsAnswer};

use crate::Report;
use crate::client::{Client, create_qp};

/// The kinds of objects, as handles encode them.
const PD: u32 = 1;
const MR: u32 = 2;
const CQ: u32 = 3;
const QP: u32 = 4;

pub(crate) fn try_all(report: &mut Report, run_dir: &Path) {
    let mut client = match Client::open(run_dir) {
        Ok(client) => client,
        Err(error) => return report.fail(&format!("the device cannot even be opened: {}", error.reason)),
    };
    report.require("an engine is welcome", client.hello().is_ok());
    let Ok(own) = client.objects() else { return report.fail("objects of one's own cannot be made") };
    let mine = [own.pd, own.cq, own.qp];
    for handle in handles().filter(|handle| !mine.contains(handle)) {
        for (what, request) in commands(handle, own.pd, own.cq) {
            report.attempt(what, client.call(&request).map_err(|error| error.reason));
        }
    }
    wire(report, &client);
}

/// The handles to try: the first objects of each kind in their first generations.
fn handles() -> impl Iterator<Item = u32> {
    let each = |kind: u32| {
        (0..4_u32).flat_map(move |generation| (0..48).map(move |index| kind << 28 | generation << 20 | index))
    };
    [PD, MR, CQ, QP].into_iter().flat_map(each)
}

fn commands(handle: u32, pd: u32, cq: u32) -> Vec<(&'static str, Vec<u8>)> {
    fn ask<T: Record>(number: u8, body: &T, room: usize) -> Vec<u8> {
        legacy(number, body, &[], room)
    }
    let region = RegMr { response: 1, start: 4096, hca_va: 4096, length: 10, pd_handle: handle, ..RegMr::default() };
    match handle >> 28 {
        PD => vec![
            ("another's PD: destroy", ask(number::DEALLOC_PD, &DeallocPd { pd_handle: handle }, 0)),
            ("another's PD: register memory on it", ask(number::REG_MR, &region, 12)),
            ("another's PD: make a QP on it", create_qp(handle, cq)),
        ],
        MR => vec![("another's MR: destroy", ask(number::DEREG_MR, &DeregMr { mr_handle: handle }, 0))],
        CQ => vec![
            (
                "another's CQ: destroy",
                ask(number::DESTROY_CQ, &DestroyCq { response: 1, cq_handle: handle, reserved: 0 }, 8),
            ),
            ("another's CQ: make a QP that completes into it", create_qp(pd, handle)),
        ],
        _ => {
            let to_error =
                ModifyQp { qp_handle: handle, attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
            vec![
                (
                    "another's QP: destroy",
                    ask(number::DESTROY_QP, &DestroyQp { response: 1, qp_handle: handle, reserved: 0 }, 4),
                ),
                ("another's QP: into its error state", ask(number::MODIFY_QP, &to_error, 0)),
                (
                    "another's QP: its attributes",
                    ask(number::QUERY_QP, &QueryQp { response: 1, qp_handle: handle, attr_mask: 0 }, 128),
                ),
            ]
        }
    }
}

/// Tries to get the agent's sockets, which receive the packets of all users.
fn wire(report: &mut Report, client: &Client) {
    let open = extended(number::WIRE_OPEN, &WireOpen::default(), size_of::<WireOut>(), 0);
    if let Ok(answer) = client.call(&open) {
        let flags = WireOut::read(&answer.bytes).map_or(u32::MAX, |out| out.flags);
        report.require("the wire is not shared between users", flags == 0 && answer.fds.len() == 2);
    }
    let sockets = extended(number::WIRE_SOCKETS, &WireSockets { first: 0, max: 6 }, size_of::<WireSocketsAnswer>(), 0);
    report.attempt("the agent's sockets", client.call(&sockets).map_err(|error| error.reason));
}
