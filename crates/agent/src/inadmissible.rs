//! The sentence for a command whose header is invalid.
//!
//! `abi::command::admit` checks the header; this file only describes the fault. The principal
//! function is [`why`].

use abi::Errno;
use abi::command::rows::{self, Row};
use abi::command::{EXTENDED, ExtendedHeader, Header, NUMBER};
use abi::layout::Record;

/// Why `request` was refused with `errno`, for a client that uses `profile` and has or does not
/// have a context.
pub(crate) fn why(request: &[u8], errno: Errno, profile: u16, has_context: bool) -> String {
    let len = request.len();
    let Some(Header { command, out_words, .. }) = Header::read(request) else {
        return format!("{len} bytes are too few for the header of a command");
    };
    let extended = command & EXTENDED != 0;
    let form = if extended { "extended " } else { "" };
    let row = rows::find((command & NUMBER) as u8, extended, profile);
    let Some(row) = row.filter(|_| command & !(NUMBER | EXTENDED) == 0) else {
        return format!("there is no {form}command {:#x}", command & !EXTENDED);
    };
    let Row { name, request_min, answer_min, .. } = row;
    match errno {
        Errno::ENOSPC => {
            let room = usize::from(out_words) * if extended { 8 } else { 4 };
            format!("{name}: there is room for {room} bytes of answer, and {answer_min} are needed")
        }
        Errno::EINVAL if row.is_get_context() == has_context => match has_context {
            true => format!("{name}: this connection has its context already"),
            false => format!("{name}: GET_CONTEXT comes first"),
        },
        Errno::EINVAL => {
            let headers = size_of::<Header>() + if extended { size_of::<ExtendedHeader>() } else { 0 };
            format!(
                "{name}: its {len} bytes are not what its header says, or fewer than {} with a body of {request_min}",
                headers + request_min
            )
        }
        _ => format!("{name}: softhca does not have this {form}command"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::command::{admit, legacy, number};
    use abi::open::profile::MAINLINE;
    use abi::pd::{AllocPd, DeallocPd};

    #[test]
    fn each_refusal_has_its_own_sentence() {
        let alloc = legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 0);
        let dealloc = legacy(number::DEALLOC_PD, &DeallocPd { pd_handle: 1 }, &[], 0);
        for (request, has_context, says) in [
            (vec![1, 2, 3], true, "too few"),
            (legacy(200, &DeallocPd::default(), &[], 0), true, "no command 0xc8"),
            ([&0x1000_0001_u32.to_le_bytes()[..], &[0; 8]].concat(), true, "no command 0x10000001"),
            (alloc.clone(), true, "room for 0 bytes of answer, and 4"),
            (dealloc.clone(), false, "GET_CONTEXT comes first"),
            (legacy(number::GET_CONTEXT, &AllocPd { response: 1 }, &[], 8), true, "already"),
            (dealloc[..8].to_vec(), true, "8 bytes are not"),
            (legacy(number::BIND_MW, &DeallocPd::default(), &[], 0), true, "does not have"),
        ] {
            let errno = admit(&request, MAINLINE, has_context).expect_err("not admitted");
            let sentence = why(&request, errno, MAINLINE, has_context);
            assert!(sentence.contains(says), "{sentence:?} does not say {says:?}");
        }
    }
}
