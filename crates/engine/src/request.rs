//! Commands as bytes: thin forms of the ABI's builders for what the engine asks.

use abi::command;
use abi::layout::Record;

/// A legacy command without private input, with room for `out_len` bytes of answer.
pub(crate) fn legacy<T: Record>(number: u8, body: &T, out_len: usize) -> Vec<u8> {
    command::legacy(number, body, &[], out_len)
}

/// One of softhca's own commands, with room for `out_len` bytes of answer.
pub(crate) fn private<T: Record>(number: u8, body: &T, out_len: usize) -> Vec<u8> {
    command::extended(number, body, out_len, 0)
}
