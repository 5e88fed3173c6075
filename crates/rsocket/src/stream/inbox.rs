//! The receiving half of a connection: which bytes of the receive ring wait to be read, which bytes
//! the peer may write, and when a grant is due. The principal type is [`Inbox`].
//!
//! At first the peer has the whole ring, so that it can fill the ring before the program reads.
//! After that, the ring is granted in halves: one half is granted when as many bytes have been read
//! as it has.

use crate::ring::Pieces;
use crate::target::Target;
use crate::violation::Violation;
use std::collections::VecDeque;

/// The receive ring and the messages in it.
#[derive(Debug, Clone)]
pub struct Inbox {
    address: u64,
    key: u32,
    size: u32,
    /// The unread lengths of the waiting messages.
    messages: VecDeque<u32>,
    read_at: u32,
    unread: u32,
    /// Bytes that the peer may still write.
    granted: u32,
    /// Bytes that are neither unread nor granted, and the start of the next half.
    free: u32,
    grant_at: u32,
    queue: u16,
    /// The number of the first message that has not been read, and the number at which the next
    /// grant is due.
    consumed: u16,
    tell_at: u16,
}

impl Inbox {
    pub(super) fn new(size: u32, queue: u16) -> Self {
        Self {
            address: 0,
            key: 0,
            size,
            messages: VecDeque::with_capacity(queue.into()),
            read_at: 0,
            unread: 0,
            granted: size,
            free: 0,
            grant_at: 0,
            queue,
            consumed: 0,
            tell_at: queue / 2,
        }
    }

    pub(super) fn set_ring(&mut self, address: u64, key: u32) {
        self.address = address;
        self.key = key;
    }

    /// How many bytes wait to be read.
    #[must_use]
    pub fn unread(&self) -> u32 {
        self.unread
    }

    /// The place of `length` unread bytes, after `skip` others. Fewer bytes if there are not so
    /// many.
    #[must_use]
    pub fn pieces(&self, skip: u32, length: u32) -> Pieces {
        let skip = skip.min(self.unread);
        let length = length.min(self.unread - skip);
        Pieces::of((self.read_at + skip) % self.size.max(1), length, self.size)
    }

    pub(super) fn received(&mut self, length: u32) -> Result<(), Violation> {
        if self.messages.len() >= usize::from(self.queue) {
            return Err(Violation::Credits);
        }
        self.granted = self.granted.checked_sub(length).ok_or(Violation::Bytes)?;
        self.unread += length;
        if length == 0 && self.messages.is_empty() {
            self.counted();
        } else {
            self.messages.push_back(length);
        }
        Ok(())
    }

    /// Counts a message without data, which also used a credit.
    pub(super) fn counted(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    pub(super) fn consume(&mut self, length: u32) {
        let mut left = length.min(self.unread);
        self.unread -= left;
        self.free += left;
        self.read_at = (self.read_at + left) % self.size.max(1);
        while let Some(first) = self.messages.front_mut() {
            if left < *first {
                *first -= left;
                break;
            }
            left -= *first;
            self.messages.pop_front();
            self.counted();
        }
    }

    pub(super) fn grant_due(&self) -> bool {
        let reached = self.consumed.wrapping_sub(self.tell_at) < 0x8000;
        self.free >= self.size / 2 || reached
    }

    /// The number up to which the peer may send, and another half of the ring if one is free.
    pub(super) fn grant(&mut self) -> (u16, Option<Target>) {
        self.tell_at = self.consumed.wrapping_add(self.queue / 2);
        let number = self.consumed.wrapping_add(self.queue);
        let half = self.size / 2;
        if self.free < half {
            return (number, None);
        }
        let target = Target { address: self.address.wrapping_add(self.grant_at.into()), key: self.key, length: half };
        self.free -= half;
        self.granted += half;
        self.grant_at = if self.grant_at == 0 { half } else { 0 };
        (number, Some(target))
    }
}
