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
    let Some(head) = request.first_chunk().map(|head| u32::from_ne_bytes(*head)) else { return false };
    let number = (head & command::NUMBER) as u8;
    match head & command::EXTENDED {
        0 => matches!(
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
        ),
        _ => matches!(number, EX_CREATE_CQ | EX_CREATE_QP | ALLOC_DM),
    }
}

/// One of softhca's own commands, with room for `out_len` bytes of answer.
pub(crate) fn private<T: Record>(number: u8, body: &T, out_len: usize) -> Vec<u8> {
    command::extended(number, body, out_len, 0)
}
