//! Memory that a program of a simulation registers. Principal type: [`Memory`].

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that engines write to behind the program's back: they are only ever copied in and out.
///
/// Its address is the process's affair and another one in each run. Registered with an address of one's own choice (`iova`), nothing of it is
/// seen in packets.
#[derive(Debug)]
pub struct Memory {
    words: Vec<AtomicU64>,
}

impl Memory {
    /// Zeros, at least `len` bytes of them.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { words: (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.len() * 8
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Writes `bytes` at `at`.
    ///
    /// # Panics
    /// They do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for (index, byte) in (at..).zip(bytes) {
            let word = &self.words[index / 8];
            let mut whole = word.load(Ordering::Relaxed).to_ne_bytes();
            whole[index % 8] = *byte;
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
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
        let words = &self.words[at / 8..(at + len).div_ceil(8)];
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
    }
}
