//! Memory that a program of a simulation registers. Principal type: [`Memory`].

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that engines write to behind the program's back: they are only ever copied in and out.
///
/// Its address is the process's affair and another one in each run. Registered with an address of one's own choice (`iova`), nothing of it is
/// seen in packets.
#[derive(Debug)]
pub struct Memory {
    words: Vec<AtomicU64>,
    /// The first word that counts: it begins a page.
    begin: usize,
    len: usize,
}

/// Words of a page.
const PAGE: usize = 512;

impl Memory {
    /// Zeros, at least `len` bytes of them, from the beginning of a page on.
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

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.words().as_ptr().expose_provenance() as u64
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes` at `at`.
    ///
    /// # Panics
    /// They do not fit.
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

    /// Writes one byte to all places of whole words.
    ///
    /// # Panics
    /// There are fewer.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        let word = u64::from_ne_bytes([byte; 8]);
        self.words()[at.div_ceil(8)..(at + len) / 8].iter().for_each(|place| place.store(word, Ordering::Relaxed));
    }

    /// The `len` bytes at `at`.
    ///
    /// # Panics
    /// There are fewer.
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
