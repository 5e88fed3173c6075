//! Memory that a program of a simulation registers. Principal type: [`Memory`].

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that engines write while the program runs, so they are only copied in and out.
///
/// The address depends on the process and differs between runs. If the memory is registered with a
/// fixed address (`iova`), packets do not show the real one.
#[derive(Debug)]
pub struct Memory {
    words: Vec<AtomicU64>,
    /// The first word in use: it begins a page.
    begin: usize,
    len: usize,
}

/// Number of words in a page.
const PAGE: usize = 512;

impl Memory {
    /// Allocates at least `len` zero bytes, beginning at a page boundary.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let count = len.div_ceil(8);
        let words: Vec<_> = (0..count + PAGE).map(|_| AtomicU64::new(0)).collect();
        let begin = (PAGE - words.as_ptr().addr() / 8 % PAGE) % PAGE;
        Self { words, begin, len: count * 8 }
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words[self.begin..self.begin + self.len / 8]
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.words().as_ptr().expose_provenance() as u64
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes` at `at`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let (words, mut at, mut rest) = (self.words(), at, bytes);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(8 - at % 8));
            let mut whole = words[at / 8].load(Ordering::Relaxed).to_ne_bytes();
            whole[at % 8..at % 8 + now.len()].copy_from_slice(now);
            words[at / 8].store(u64::from_ne_bytes(whole), Ordering::Relaxed);
            (at, rest) = (at + now.len(), later);
        }
    }

    /// Writes one byte to all bytes of a range of whole words.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        let word = u64::from_ne_bytes([byte; 8]);
        self.words()[at.div_ceil(8)..(at + len) / 8].iter().for_each(|place| place.store(word, Ordering::Relaxed));
    }

    /// The `len` bytes at `at`.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        if len == 0 {
            return Vec::new();
        }
        let words = &self.words()[at / 8..(at + len).div_ceil(8)];
        let all: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        all[at % 8..at % 8 + len].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_where_they_went_in() {
        let memory = Memory::new(29);
        memory.put(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(memory.bytes(2, 12), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0]);
        assert_eq!((memory.len(), memory.bytes(8, 3)), (32, vec![6, 7, 8]));
        assert_eq!(memory.address() % 4096, 0);
    }
}
