//! The receives of a connection. Each takes one message of the peer. Immediate data needs no buffer.
//! iWARP has no immediate data, and messages come as SENDs, so each receive has a word of memory.
//! The principal type is [`Words`].

use super::memory::Region;
use super::verbs::{Access, Queue};
use crate::entry::Outcome;
use crate::layout::{Pd, Wc};
use rsocket::message::SIZE;
use rsocket::{Message, Order, Violation};

/// The receives of a connection, and their memory if they have any.
pub(crate) struct Words {
    memory: Option<Region>,
}

impl Words {
    /// Makes the receives and posts them all. `sends`: messages come as SENDs.
    pub(crate) fn new(pd: *mut Pd, queue: &Queue, count: u32, sends: bool) -> Outcome<Self> {
        let length = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(SIZE);
        let memory = if sends { Some(Region::new(pd, length, Access::Local)?) } else { None };
        let words = Self { memory };
        words.post(queue, 0..count)?;
        Ok(words)
    }

    /// Posts the receives with these numbers.
    pub(crate) fn post(&self, queue: &Queue, numbers: impl IntoIterator<Item = u32>) -> Outcome<()> {
        let place = |number: u32| {
            let memory = self.memory.as_ref()?;
            Some((memory.address() + u64::from(number) * SIZE as u64, SIZE as u32, memory.lkey()))
        };
        queue.receive_words(numbers.into_iter().map(|number| (number, place(number))))
    }

    /// The message that has completed a receive.
    pub(crate) fn message(&self, number: u32, wc: &Wc, order: Order) -> Result<u32, Violation> {
        match &self.memory {
            None => Ok(u32::from_be(wc.imm_data)),
            Some(memory) => {
                let offset = usize::try_from(number).unwrap_or(usize::MAX).saturating_mul(SIZE);
                Message::of_send(memory.read(offset), wc.byte_len, order)
            }
        }
    }
}
