//! What a manager wants to know of the links: states that changed, and packets of foreign
//! partitions. The fabric keeps these notes for an owner that watches. Not the notices that are
//! made of them ([`crate::managed`]). Principal type: [`Note`].

use super::{End, Fabric};
use crate::counters::Cause;
use crate::frame::Frame;
use crate::state::Logical;

/// The notes of bad keys that wait. An owner that watches takes them often; later ones only count.
const MOST: usize = 1024;

/// Something that happened at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The link layer changed its state.
    State {
        /// The port.
        end: End,
        /// The state before.
        before: Logical,
        /// The state now.
        now: Logical,
    },
    /// A packet of a foreign partition was dropped.
    Partition {
        /// The port that dropped it.
        end: End,
        /// The packet.
        frame: Frame,
    },
}

impl Fabric {
    /// Begins to keep notes.
    pub fn watch(&mut self) {
        self.notes.get_or_insert_default();
    }

    /// The notes since the last call, in order.
    pub fn notes(&mut self) -> Vec<Note> {
        self.notes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether something has happened since the last [`Fabric::advance`] or [`Fabric::notes`] that
    /// its owner does not know.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.deliveries.is_empty() || self.notes.as_ref().is_some_and(|notes| !notes.is_empty())
    }

    pub(super) fn note_state(&mut self, at: u32, before: Logical) {
        let (end, now) = (self.end(at), self.ports[at as usize].logical);
        self.notes.iter_mut().for_each(|notes| notes.push(Note::State { end, before, now }));
    }

    /// Counts packets that are not in the fabric, and that a port would drop.
    pub(crate) fn count_drops(&mut self, end: End, cause: Cause, count: u64) {
        if let Some(at) = self.index(end) {
            self.ports[at as usize].counters.drop_some(cause, count);
        }
    }

    /// Counts a packet that is dropped at a port.
    pub(super) fn drop_at(&mut self, at: u32, cause: Cause, frame: &Frame) {
        self.ports[at as usize].counters.drop(cause);
        let end = self.end(at);
        let notes = self.notes.as_mut().filter(|notes| notes.len() < MOST);
        if let (Cause::PartitionIn | Cause::PartitionOut, Some(notes)) = (cause, notes) {
            notes.push(Note::Partition { end, frame: frame.clone() });
        }
    }
}
