//! `umad_send`, `umad_recv` and `umad_poll`. A message is the header [`UserMad`] and the MAD.

use std::ffi::{c_int, c_void};

use abi::umad::UserMad;
use umad::HEADER;

use crate::devices::negative;
use crate::entry::{self, Refusal};
use crate::file;

const INVALID: Refusal = Refusal(libc::EINVAL);

unsafe extern "C-unwind" {
    /// The C library's function, in which a waiting thread can be cancelled.
    #[link_name = "poll"]
    fn wait(files: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// `umad_send`.
pub(crate) unsafe extern "C" fn send(
    port: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let mut cause = Refusal(libc::EIO);
    let sent = negative("umad_send", || {
        let length = usize::try_from(length).map_err(|_| INVALID)?;
        // SAFETY: the program's message, which nothing else uses during the call.
        let header = unsafe { umad.cast::<UserMad>().as_mut() }.ok_or(INVALID)?;
        header.id = agent.cast_unsigned();
        header.timeout_ms = timeout_ms.cast_unsigned();
        header.retries = retries.cast_unsigned();
        // SAFETY: the program's message has `length` bytes behind its header.
        let mad = unsafe { std::slice::from_raw_parts(umad.cast::<u8>().wrapping_add(HEADER), length) };
        let sent = file::file(port).and_then(|file| file.write(header, mad).map_err(|error| file::told(&error)));
        sent.map(|()| 0).map_err(|refusal| {
            cause = refusal;
            Refusal(libc::EIO)
        })
    });
    // The result is -EIO for every failure of `write`, whose errno stays.
    if sent == -libc::EIO {
        entry::set_errno(cause);
    }
    sent
}

/// `umad_poll`. A cancelled thread leaves it from `wait`, so nothing here needs to be dropped.
pub(crate) unsafe extern "C-unwind" fn poll(port: c_int, timeout_ms: c_int) -> c_int {
    let mut file = libc::pollfd { fd: port, events: libc::POLLIN, revents: 0 };
    // SAFETY: one local struct.
    match unsafe { wait(&raw mut file, 1, timeout_ms) } {
        1 => 0,
        0 => -libc::ETIMEDOUT,
        _ => -libc::EIO,
    }
}

/// `umad_recv`. With timeout 0 it does not wait.
pub(crate) unsafe extern "C-unwind" fn receive(
    port: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    if timeout_ms != 0 {
        // SAFETY: numbers only.
        let waited = unsafe { poll(port, timeout_ms) };
        if waited < 0 {
            entry::set_errno(Refusal(waited.wrapping_neg()));
            return waited;
        }
    }
    negative("umad_recv", || {
        // SAFETY: the program passes the length of its room, or NULL.
        let length = unsafe { length.as_mut() }.ok_or(INVALID)?;
        let room = usize::try_from(*length).map_err(|_| INVALID)?.saturating_add(HEADER);
        if umad.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program's message has room for a header and `length` bytes.
        let room = unsafe { std::slice::from_raw_parts_mut(umad.cast::<u8>(), room) };
        let taken = file::file(port)?.receive(room);
        // SAFETY: the program's message has a header, which was received or is still its own.
        let header = unsafe { &*umad.cast::<UserMad>() };
        // After a failure too, the length is that which the header says.
        let whole = taken.as_ref().map_or(header.length, |whole| *whole as u32);
        *length = whole.wrapping_sub(HEADER as u32).cast_signed();
        taken.map(|_| header.id.cast_signed()).map_err(|error| file::told(&error))
    })
}
