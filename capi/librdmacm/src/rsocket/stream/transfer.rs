//! Sending and receiving bytes. The sender copies into the send ring and posts. The receiver copies
//! out of the receive ring and grants the space that has become free. The socket's lock is not held
//! while bytes are copied.

use super::{Phase, State, StreamSocket, grant};
use crate::entry::{Outcome, Refusal};
use crate::rsocket::link::{Link, size};
use crate::rsocket::vectors::{Buffers, Cursor};
use crate::rsocket::verbs::Load;
use rsocket::Stream;
use rsocket::ring::Pieces;
use rsocket::stream::{End, Transfer};
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// The first message of a long transfer is short, so that an idle peer can begin; then messages
/// grow.
const FIRST: usize = 4096;
const LONGEST: usize = 1 << 16;
/// A running receiver makes room in the send ring within this time.
const AT_ONCE: Duration = Duration::from_micros(150);
/// How many bytes are read before the free space is granted.
const READ_STEP: u32 = 1 << 16;
/// The buffer size for inline data from several buffers.
const GATHERED: usize = 512;

impl StreamSocket {
    /// `rsend` and the other sending calls.
    ///
    /// # Safety
    /// The buffers can be read.
    pub(crate) unsafe fn send(&self, buffers: Buffers<'_>, flags: c_int) -> Outcome<usize> {
        let (total, mut cursor) = (buffers.length(), buffers.cursor());
        let idle = total > FIRST && self.state().stream.as_ref().is_none_or(Stream::all_sent);
        let (mut done, mut longest) = (0, if idle { FIRST } else { LONGEST });
        loop {
            // SAFETY: the caller's promise.
            let sent = unsafe { self.send_some(&mut cursor, (total - done).min(longest), flags) };
            match sent {
                Ok(count) => done += count,
                Err(_) if done > 0 => return Ok(done),
                Err(refusal) => return Err(refusal),
            }
            if done == total {
                return Ok(done);
            }
            longest = (longest * 2).min(LONGEST);
        }
    }

    /// Sends one message.
    ///
    /// # Safety
    /// As for [`StreamSocket::send`].
    unsafe fn send_some(&self, cursor: &mut Cursor<'_>, most: usize, flags: c_int) -> Outcome<usize> {
        loop {
            let patience = {
                let _turn = self.sending.lock();
                let mut state = self.state();
                if let Some(outlet) = self.outlet(&mut state)? {
                    self.send_maps(&mut state);
                    // SAFETY: the caller's promise.
                    return unsafe { self.send_message(state, cursor, most.min(outlet)) };
                }
                state.settings.send_patience(flags)
            };
            self.wait(patience, |state| !state.phase.is_opening() && state.stream.as_ref().is_none_or(can_send))?;
        }
    }

    /// How many bytes can be sent now; `None` if the caller must wait.
    fn outlet(&self, state: &mut State) -> Outcome<Option<usize>> {
        if state.phase.is_opening() {
            self.look(state);
        }
        match state.phase {
            Phase::Connected => {}
            phase if phase.is_opening() => return Ok(None),
            Phase::Failed => return Err(Refusal(take_error(state, libc::ECONNRESET))),
            _ => return Err(Refusal(libc::ENOTCONN)),
        }
        for again in [false, true] {
            if again {
                self.look(state);
            }
            let State { stream, crowded, .. } = &mut *state;
            let stream = stream.as_mut().ok_or(Refusal(libc::ENOTCONN))?;
            if !stream.is_writable() {
                return Err(Refusal(if stream.is_up() { libc::EPIPE } else { libc::ECONNRESET }));
            }
            if stream.room() > 0 {
                if let Some(since) = crowded.take() {
                    stream.waited(since.elapsed() > AT_ONCE);
                }
                return Ok(Some(size(stream.room())));
            }
            if again && stream.lacks_ring() {
                crowded.get_or_insert_with(Instant::now);
            }
        }
        Ok(None)
    }

    /// # Safety
    /// As for [`StreamSocket::send`].
    unsafe fn send_message(
        &self,
        mut state: parking_lot::MutexGuard<'_, State>,
        cursor: &mut Cursor<'_>,
        length: usize,
    ) -> Outcome<usize> {
        let unconnected = Refusal(libc::ENOTCONN);
        let link = self.link.get().ok_or(unconnected)?;
        let stream = state.stream.as_mut().ok_or(unconnected)?;
        let count = u32::try_from(length).unwrap_or(u32::MAX);
        if count <= link.inline && length <= GATHERED {
            let mut gathered = [0_u8; GATHERED];
            // SAFETY: the caller's promise, and `gathered` has room.
            unsafe { cursor.copy_out(gathered.as_mut_ptr(), length) };
            let transfer = stream.send_from_elsewhere(count);
            self.post(&mut state, &transfer, Load::inline(gathered.as_ptr(), count))?;
        } else {
            let (transfer, pieces) = stream.send(count);
            drop(state);
            // SAFETY: the caller's promise; the pieces are this thread's until their completion.
            unsafe { fill(link, pieces, cursor) };
            self.post_pieces(link, &transfer, pieces)?;
        }
        Ok(length)
    }

    fn post_pieces(&self, link: &Link, transfer: &Transfer, pieces: Pieces) -> Outcome<()> {
        link.queue.transfer(transfer, link.load(pieces)).map_err(|_| {
            self.fail(&mut self.state(), libc::ECONNRESET);
            Refusal(libc::ECONNRESET)
        })
    }

    /// `riowrite`: writes into buffers that the peer has mapped. Stops at an offset that is not
    /// mapped.
    ///
    /// # Safety
    /// The buffers can be read.
    pub(crate) unsafe fn send_direct(&self, buffers: Buffers<'_>, offset: u64, flags: c_int) -> Outcome<usize> {
        let (total, mut cursor) = (buffers.length(), buffers.cursor());
        let (mut done, mut longest) = (0, FIRST);
        while done < total {
            let place = offset.wrapping_add(done as u64);
            // SAFETY: the caller's promise.
            match unsafe { self.send_direct_some(&mut cursor, place, (total - done).min(longest), flags) } {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(refusal) => return Err(refusal),
            }
            longest = (longest * 2).min(LONGEST);
        }
        Ok(done)
    }

    /// # Safety
    /// As for [`StreamSocket::send_direct`].
    unsafe fn send_direct_some(
        &self,
        cursor: &mut Cursor<'_>,
        place: u64,
        most: usize,
        flags: c_int,
    ) -> Outcome<usize> {
        loop {
            let patience = {
                let _turn = self.sending.lock();
                let mut state = self.state();
                if self.outlet(&mut state)?.is_some() || state.phase == Phase::Connected {
                    self.send_maps(&mut state);
                    let link = self.link.get().ok_or(Refusal(libc::ENOTCONN))?;
                    let Some(target) = link.mapped(place) else { return Ok(0) };
                    let stream = state.stream.as_mut().ok_or(Refusal(libc::ENOTCONN))?;
                    let length = most.min(size(stream.direct_room())).min(size(target.length));
                    if length > 0 {
                        let (transfer, pieces) = stream.send_direct(u32::try_from(length).unwrap_or(u32::MAX), target);
                        drop(state);
                        // SAFETY: the caller's promise; the pieces are this thread's until their
                        // completion.
                        unsafe { fill(link, pieces, cursor) };
                        self.post_pieces(link, &transfer, pieces)?;
                        return Ok(length);
                    }
                }
                state.settings.send_patience(flags)
            };
            let ready = |stream: &Stream| stream.direct_room() > 0 || !stream.is_writable();
            self.wait(patience, |state| !state.phase.is_opening() && state.stream.as_ref().is_none_or(ready))?;
        }
    }

    /// `rrecv` and the other receiving calls.
    ///
    /// # Safety
    /// The buffers can be written.
    pub(crate) unsafe fn receive(&self, buffers: Buffers<'_>, flags: c_int) -> Outcome<usize> {
        let (total, mut cursor) = (buffers.length(), buffers.cursor());
        let peek = flags & libc::MSG_PEEK != 0;
        let whole = flags & libc::MSG_WAITALL != 0 && !peek;
        let mut done = 0;
        loop {
            // SAFETY: the caller's promise.
            let taken = unsafe { self.receive_some(&mut cursor, total - done, peek) };
            match taken {
                Ok(Inlet::Bytes(count)) => {
                    done += count;
                    if done == total || peek {
                        return Ok(done);
                    }
                }
                Ok(Inlet::End) => return Ok(done),
                Ok(Inlet::Nothing) if done > 0 && !whole => return Ok(done),
                Ok(Inlet::Nothing) => {
                    let patience = self.state().settings.receive_patience(flags);
                    let waited = self.wait(patience, |state| {
                        !state.phase.is_opening() && state.stream.as_ref().is_none_or(can_receive)
                    });
                    match waited {
                        Err(_) if done > 0 => return Ok(done),
                        other => other?,
                    }
                }
                Err(_) if done > 0 => return Ok(done),
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Takes bytes that have arrived, at most one step of them.
    ///
    /// # Safety
    /// As for [`StreamSocket::receive`].
    unsafe fn receive_some(&self, cursor: &mut Cursor<'_>, most: usize, peek: bool) -> Outcome<Inlet> {
        let _turn = self.receiving.lock();
        let link;
        let pieces = {
            let mut state = self.state();
            let there = |state: &State| state.stream.as_ref().is_some_and(|stream| stream.inbox().unread() > 0);
            if !there(&state) {
                self.look(&mut state);
            }
            match state.phase {
                Phase::Connected => {}
                // A peer that sends knows that the connection is established, even if its last
                // message about the connection was lost.
                Phase::Accepting if there(&state) => {}
                phase if phase.is_opening() => return Ok(Inlet::Nothing),
                Phase::Failed => return Err(Refusal(take_error(&mut state, libc::ENOTCONN))),
                _ => return Err(Refusal(libc::ENOTCONN)),
            }
            link = self.link.get().ok_or(Refusal(libc::ENOTCONN))?;
            let stream = state.stream.as_ref().ok_or(Refusal(libc::ENOTCONN))?;
            let step = u32::try_from(most).unwrap_or(u32::MAX).min(if peek { u32::MAX } else { READ_STEP });
            let pieces = stream.inbox().pieces(0, step);
            if pieces.length() == 0 && most > 0 {
                if stream.is_readable() {
                    return Ok(Inlet::Nothing);
                }
                let failed = stream.end() == Some(End::Failed);
                return match take_error(&mut state, 0) {
                    0 => Ok(Inlet::End),
                    errno if failed => Err(Refusal(errno)),
                    _ => Ok(Inlet::End),
                };
            }
            pieces
        };
        // SAFETY: the caller's promise; unread bytes stay until they are consumed.
        unsafe { empty(link, pieces, cursor) };
        if !peek {
            let mut state = self.state();
            if let Some(stream) = &mut state.stream {
                stream.consume(pieces.length());
                grant(link, stream);
            }
        }
        Ok(Inlet::Bytes(size(pieces.length())))
    }
}

/// The result of an attempt to read.
enum Inlet {
    Bytes(usize),
    Nothing,
    End,
}

/// Whether an attempt to send makes sense.
pub(super) fn can_send(stream: &Stream) -> bool {
    stream.room() > 0 || !stream.is_writable()
}

/// Whether an attempt to receive makes sense.
pub(super) fn can_receive(stream: &Stream) -> bool {
    stream.inbox().unread() > 0 || !stream.is_readable()
}

/// Takes the stored error, or returns `other` if there is none.
fn take_error(state: &mut State, other: c_int) -> c_int {
    match std::mem::replace(&mut state.error, 0) {
        0 => other,
        errno => errno,
    }
}

/// Copies the program's bytes into pieces of the send ring.
///
/// # Safety
/// The buffers can be read, and no other thread writes these pieces.
unsafe fn fill(link: &Link, pieces: Pieces, cursor: &mut Cursor<'_>) {
    for (offset, length) in [pieces.first, (0, pieces.second)] {
        let to = link.outbox.at(size(offset), size(length));
        if length > 0 && !to.is_null() {
            // SAFETY: the caller's promise; inside the ring.
            unsafe { cursor.copy_out(to, size(length)) };
        }
    }
}

/// Copies pieces of the receive ring to the program.
///
/// # Safety
/// The buffers can be written.
unsafe fn empty(link: &Link, pieces: Pieces, cursor: &mut Cursor<'_>) {
    for (offset, length) in [pieces.first, (0, pieces.second)] {
        let from = link.inbox.at(size(offset), size(length));
        if length > 0 && !from.is_null() {
            // SAFETY: the caller's promise; inside the ring.
            unsafe { cursor.copy_in(from, size(length)) };
        }
    }
}
