//! Command headers, and the rules that every command obeys before its body is parsed.
//!
//! [`Header`] and [`ExtendedHeader`] are the two headers of the uverbs ABI. [`admit`] applies the
//! checks in the kernel's order and returns a [`Command`], from which the caller parses bodies and
//! builds replies. [`rows`] lists the commands.

use crate::errno::Errno;
use crate::layout::Record;

pub mod number;
pub mod rows;

pub use number::*;
pub use rows::{ROWS, Row, Support};

record! {
    /// Begins each command.
    pub struct Header[8] {
        /// Bits 0..7: command number; bit 31: extended form; the others are 0.
        0 => command: u32,
        /// Legacy: length of the whole command, this header included, in words of 4 bytes.
        /// Extended: length of the core input in words of 8 bytes.
        4 => in_words: u16,
        /// Room for the answer: legacy in words of 4 bytes, extended in words of 8 bytes (core
        /// only).
        6 => out_words: u16,
    }

    /// Follows the header of an extended command.
    pub struct ExtendedHeader[16] {
        /// Opaque: where a kernel would put the answer; 0 if and only if both rooms for output are
        /// 0.
        0 => response: u64,
        /// Length of the provider input, which follows the core input, in words of 8 bytes.
        8 => provider_in_words: u16,
        /// Room for provider output, which follows the core output, in words of 8 bytes.
        10 => provider_out_words: u16,
        /// 0.
        12 => reserved: u32,
    }
}

/// Bit 31 of `Header::command`.
pub const EXTENDED: u32 = 0x8000_0000;
/// The bits of `Header::command` that hold the number.
pub const NUMBER: u32 = 0xff;
/// The value of `response` in built commands: any value except 0 works.
pub const RESPONSE: u64 = 1;

/// Builds a legacy command: header, body and private tail (a multiple of 4 bytes together), with
/// room for `out_len` bytes of answer.
#[must_use]
pub fn legacy<T: Record>(number: u8, body: &T, tail: &[u8], out_len: usize) -> Vec<u8> {
    let len = size_of::<Header>() + size_of::<T>() + tail.len();
    let header = Header { command: u32::from(number), in_words: words(len, 4), out_words: words(out_len, 4) };
    [header.bytes(), body.bytes(), tail].concat()
}

/// Builds an extended command: both headers and the core input, with room for `out_len` bytes of
/// core answer and `provider_out_len` of provider answer.
#[must_use]
pub fn extended<T: Record>(number: u8, body: &T, out_len: usize, provider_out_len: usize) -> Vec<u8> {
    let header = Header {
        command: EXTENDED | u32::from(number),
        in_words: words(size_of::<T>(), 8),
        out_words: words(out_len, 8),
    };
    let response = if out_len + provider_out_len > 0 { RESPONSE } else { 0 };
    let second =
        ExtendedHeader { response, provider_in_words: 0, provider_out_words: words(provider_out_len, 8), reserved: 0 };
    let mut bytes = [header.bytes(), second.bytes(), body.bytes()].concat();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Length in words, rounded up; a length that does not fit the field gives the largest value, which
/// no agent accepts.
fn words(len: usize, word: usize) -> u16 {
    u16::try_from(len.div_ceil(word)).unwrap_or(u16::MAX)
}

/// A command whose header has been checked: body, tails and room for the answer.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    /// What the table says about it.
    pub row: &'static Row,
    /// Legacy: everything after the header. Extended: the core input.
    core: &'a [u8],
    /// Extended: the provider input. Legacy: empty (the private tail is part of `core`).
    provider: &'a [u8],
    /// Room for the answer (extended: core only), bytes.
    room: usize,
    /// Extended: room for provider output, bytes.
    provider_room: usize,
}

/// Checks a command's header against the table, in the kernel's order: length, reserved bits,
/// number, GET_CONTEXT first and only once, support, lengths, room for the answer.
///
/// # Errors
/// EINVAL for a malformed or unknown command, or one out of order; the table's error for an
/// unsupported command; ENOSPC when the room is too small.
pub fn admit(bytes: &[u8], profile: u16, has_context: bool) -> Result<Command<'_>, Errno> {
    let header = Header::read(bytes).ok_or(Errno::EINVAL)?;
    if header.command & !(NUMBER | EXTENDED) != 0 {
        return Err(Errno::EINVAL);
    }
    let extended = header.command & EXTENDED != 0;
    let row = rows::find((header.command & NUMBER) as u8, extended, profile).ok_or(Errno::EINVAL)?;
    if row.is_get_context() == has_context {
        return Err(Errno::EINVAL);
    }
    if let Support::Refused(errno) = row.support {
        return Err(errno);
    }
    let rest = &bytes[size_of::<Header>()..];
    let command = if extended { split_extended(row, &header, rest)? } else { split_legacy(row, &header, rest)? };
    if command.core.len() < row.request_min {
        return Err(Errno::EINVAL);
    }
    if command.room < row.answer_min {
        return Err(Errno::ENOSPC);
    }
    Ok(command)
}

fn split_legacy<'a>(row: &'static Row, header: &Header, rest: &'a [u8]) -> Result<Command<'a>, Errno> {
    if usize::from(header.in_words) * 4 != size_of::<Header>() + rest.len() {
        return Err(Errno::EINVAL);
    }
    Ok(Command { row, core: rest, provider: &[], room: usize::from(header.out_words) * 4, provider_room: 0 })
}

fn split_extended<'a>(row: &'static Row, header: &Header, rest: &'a [u8]) -> Result<Command<'a>, Errno> {
    let second = ExtendedHeader::read(rest).ok_or(Errno::EINVAL)?;
    let input = &rest[size_of::<ExtendedHeader>()..];
    let core = usize::from(header.in_words) * 8;
    let room = usize::from(header.out_words) * 8;
    let provider_room = usize::from(second.provider_out_words) * 8;
    if second.reserved != 0
        || core + usize::from(second.provider_in_words) * 8 != input.len()
        || (second.response == 0) != (room + provider_room == 0)
    {
        return Err(Errno::EINVAL);
    }
    let (core, provider) = input.split_at(core);
    Ok(Command { row, core, provider, room, provider_room })
}

impl<'a> Command<'a> {
    /// Whether the command has the extended form.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        self.row.extended
    }

    /// The body. In a legacy command the bytes after the body are a provider's private tail and are
    /// ignored. In an extended command they must be zero. An extended body that is shorter than the
    /// record is extended with zeros.
    ///
    /// # Errors
    /// EINVAL when it is shorter than the table allows, EOPNOTSUPP when unknown bytes follow in an
    /// extended command.
    pub fn body<T: Record>(&self) -> Result<T, Errno> {
        let (body, tail) = self.body_and_tail()?;
        if self.is_extended() && tail.iter().chain(self.provider).any(|&byte| byte != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(body)
    }

    /// The body and the bytes after it, for commands with private input or arrays.
    ///
    /// # Errors
    /// EINVAL when the body is shorter than the table allows.
    pub fn body_and_tail<T: Record>(&self) -> Result<(T, &'a [u8]), Errno> {
        if self.core.len() < self.row.request_min.min(size_of::<T>()) {
            return Err(Errno::EINVAL);
        }
        let (body, tail) = self.core.split_at(self.core.len().min(size_of::<T>()));
        Ok((T::read_zero_extended(body), tail))
    }

    /// Room for the answer in bytes, private tail of a legacy command included.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room
    }

    /// How many bytes of a core answer of type `T` the caller will see: the value of
    /// `response_length`.
    #[must_use]
    pub fn response_length<T: Record>(&self) -> u32 {
        u32::try_from(self.room.min(size_of::<T>())).unwrap_or(u32::MAX)
    }

    /// The answer's bytes: `answer`, then `tail` (private or provider output), cut to the caller's
    /// room.
    #[must_use]
    pub fn reply(&self, answer: &[u8], tail: &[u8]) -> Vec<u8> {
        let mut bytes = answer[..answer.len().min(self.room)].to_vec();
        if self.is_extended() {
            let tail = &tail[..tail.len().min(self.provider_room)];
            if !tail.is_empty() {
                bytes.resize(self.room, 0);
                bytes.extend_from_slice(tail);
            }
        } else {
            bytes.extend_from_slice(&tail[..tail.len().min(self.room - bytes.len())]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
