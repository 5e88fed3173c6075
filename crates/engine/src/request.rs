//! Commands as bytes: short forms of the ABI's builders, for the engine's commands.

use abi::command;
use abi::layout::Record;

/// A legacy command without private input, with room for `out_len` bytes of answer.
pub(crate) fn legacy<T: Record>(number: u8, body: &T, out_len: usize) -> Vec<u8> {
    command::legacy(number, body, &[], out_len)
}

/// Whether a command makes an object of the program's.
pub(crate) fn makes(request: &[u8]) -> bool {
    use command::number::{
        ALLOC_DM, ALLOC_MW, ALLOC_PD, ATTACH_MCAST, CREATE_AH, CREATE_CQ, CREATE_QP, CREATE_SRQ, CREATE_XSRQ,
        EX_CREATE_CQ, EX_CREATE_QP, OPEN_QP, OPEN_XRCD, REG_MR,
    };
    let Some((number, is_extended)) = number(request) else { return false };
    if is_extended {
        return matches!(number, EX_CREATE_CQ | EX_CREATE_QP | ALLOC_DM);
    }
    matches!(
        number,
        ALLOC_PD
            | CREATE_AH
            | REG_MR
            | ALLOC_MW
            | CREATE_CQ
            | CREATE_QP
            | ATTACH_MCAST
            | CREATE_SRQ
            | OPEN_XRCD
            | CREATE_XSRQ
            | OPEN_QP
    )
}

/// The most descriptors of one answer that belong to an object: a lane has four.
const MOST: usize = 4;

/// How many descriptors the answer may have, of an object that the command makes or changes. The
/// command must not be executed if they have no room.
pub(crate) fn descriptors(request: &[u8]) -> usize {
    use command::number::{
        ALLOC_DM, CREATE_COMP_CHANNEL, CREATE_CQ, CREATE_QP, CREATE_SRQ, CREATE_XSRQ, EX_CREATE_CQ, EX_CREATE_QP,
        IMPORT_DM, IMPORT_MR, LANE_OPEN, MODIFY_SRQ, RESIZE_CQ, STREAM_TAKE, WIRE_OPEN, XRC_ADOPT,
    };
    match number(request) {
        Some((EX_CREATE_CQ | EX_CREATE_QP, true)) => 1,
        Some((CREATE_CQ | CREATE_QP | CREATE_SRQ | CREATE_XSRQ | MODIFY_SRQ | RESIZE_CQ, false)) => 1,
        Some((CREATE_COMP_CHANNEL, false)) => 1,
        Some((ALLOC_DM | IMPORT_DM | IMPORT_MR | LANE_OPEN | STREAM_TAKE | WIRE_OPEN | XRC_ADOPT, true)) => MOST,
        _ => 0,
    }
}

/// Whether the caller of a command undoes what the agent has done if the answer comes without its
/// descriptors.
pub(crate) fn is_undone(request: &[u8]) -> bool {
    use command::number::{
        ALLOC_DM, CREATE_CQ, CREATE_QP, CREATE_SRQ, CREATE_XSRQ, IMPORT_DM, IMPORT_MR, MODIFY_SRQ, RESIZE_CQ,
        STREAM_TAKE,
    };
    match number(request) {
        Some((number, false)) => {
            matches!(number, CREATE_CQ | CREATE_QP | CREATE_SRQ | CREATE_XSRQ | RESIZE_CQ | MODIFY_SRQ)
        }
        Some((number, true)) => matches!(number, ALLOC_DM | IMPORT_DM | IMPORT_MR | STREAM_TAKE),
        None => false,
    }
}

/// A command's number, and whether it is an extended command.
fn number(request: &[u8]) -> Option<(u8, bool)> {
    let head = request.first_chunk().map(|head| u32::from_ne_bytes(*head))?;
    Some(((head & command::NUMBER) as u8, head & command::EXTENDED != 0))
}

/// One of softhca's own commands, with room for `out_len` bytes of answer.
pub(crate) fn private<T: Record>(number: u8, body: &T, out_len: usize) -> Vec<u8> {
    command::extended(number, body, out_len, 0)
}

#[cfg(test)]
mod tests {
    use abi::dm::ImportMr;
    use abi::qp::DestroyQp;

    use super::*;

    #[test]
    fn descriptors_come_for_queues_and_for_memory_of_the_agent() {
        let imported = private(command::number::IMPORT_MR, &ImportMr { pd_handle: 1, handle: 2 }, 0);
        assert!(descriptors(&imported) == MOST && is_undone(&imported));
        let body = DestroyQp { response: 1, qp_handle: 1, reserved: 0 };
        let made = legacy(command::number::CREATE_QP, &body, 0);
        assert!(descriptors(&made) == 1 && is_undone(&made));
        let destroyed = legacy(command::number::DESTROY_QP, &body, 0);
        assert!(descriptors(&destroyed) == 0 && !is_undone(&destroyed));
    }
}
