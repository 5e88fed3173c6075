//! Buffers of the program that the peer may write to directly (`riomap`), and buffers that are only
//! registered. The principal type is [`Maps`].

use super::stream::{State, StreamSocket};
use super::verbs::{self, Access, Load, Registered};
use crate::entry::{Outcome, Refusal};
use crate::layout::Mr;
use rsocket::Target;
use rsocket::iomap::{Entry, Slots};

/// The mapped buffers of a connection.
#[derive(Default)]
pub(crate) struct Maps {
    slots: Option<Slots>,
    list: Vec<Mapped>,
}

/// One mapped buffer.
struct Mapped {
    start: usize,
    length: usize,
    registration: Registration,
    /// The slot in the peer's map, or `None` for a buffer that is only registered. `told`: the peer
    /// knows the buffer.
    slot: Option<u16>,
    told: bool,
    offset: u64,
}

/// A registration that ends with its owner.
struct Registration(*mut Mr, u32);

// SAFETY: any thread may end a registration.
unsafe impl Send for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        verbs::deregister(self.0);
    }
}

impl Maps {
    /// Ends all mappings.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}

impl StreamSocket {
    /// `riomap`. If the peer may write to the buffer, the next message tells the peer about it.
    pub(crate) fn map(&self, start: *mut u8, length: usize, remote: bool, offset: Option<u64>) -> Outcome<u64> {
        let mut state = self.state();
        if self.link().is_none() {
            return Err(Refusal(libc::EINVAL));
        }
        let peers = state.stream.as_ref().map_or(0, rsocket::Stream::iomap);
        let maps = &mut state.maps;
        let access = if remote { Access::RemoteWrite } else { Access::Local };
        let Registered { mr, rkey, .. } = verbs::register(self.endpoint().pd(), start, length, access)?;
        let registration = Registration(mr, rkey);
        let slot = if remote {
            let slots = maps.slots.get_or_insert_with(|| Slots::new(peers));
            Some(slots.take().ok_or(Refusal(libc::ENOMEM))?)
        } else {
            None
        };
        let start = start.expose_provenance();
        let offset = offset.unwrap_or(start as u64);
        maps.list.push(Mapped { start, length, registration, slot, told: false, offset });
        Ok(offset)
    }

    /// `riounmap`. The peer is not told; a later write of the peer to the buffer ends its
    /// connection.
    pub(crate) fn unmap(&self, start: *mut u8, length: usize) -> Outcome<()> {
        let mut state = self.state();
        let maps = &mut state.maps;
        let same = |mapped: &Mapped| mapped.start == start.addr() && mapped.length == length;
        let place = maps.list.iter().position(same).ok_or(Refusal(libc::EINVAL))?;
        let mapped = maps.list.swap_remove(place);
        if let (Some(slot), Some(slots)) = (mapped.slot, &mut maps.slots) {
            slots.give_back(slot);
        }
        Ok(())
    }

    /// Tells the peer about new buffers, as far as they can be sent now.
    pub(crate) fn send_maps(&self, state: &mut State) {
        let (Some(stream), Some(link)) = (&mut state.stream, self.link()) else { return };
        for mapped in state.maps.list.iter_mut().filter(|mapped| !mapped.told) {
            let Some(slot) = mapped.slot else { continue };
            let length = u32::try_from(mapped.length).unwrap_or(u32::MAX);
            let target = Target { address: mapped.start as u64, key: mapped.registration.1, length };
            let Some((transfer, bytes)) = stream.map(slot, &Entry { offset: mapped.offset, target }) else { return };
            let load = Load::inline(bytes.as_ptr(), Entry::SIZE as u32);
            if link.queue.transfer(&transfer, load).is_err() {
                stream.fail();
                return;
            }
            mapped.told = true;
        }
    }
}
