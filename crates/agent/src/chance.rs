//! Random numbers that cannot be guessed, read from the system in small portions. The principal
//! type is [`Random`].

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::numbers::Chance;

/// A source of random numbers that cannot be guessed.
pub(crate) struct Random {
    words: [u8; 256],
    used: usize,
}

impl Random {
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = Self { words: [0; 256], used: 256 };
        random.fill()?;
        Ok(random)
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut filled = 0;
        while filled < self.words.len() {
            filled += rustix::rand::getrandom(&mut self.words[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(shm::denied::denied("getrandom"))?;
        }
        self.used = 0;
        Ok(())
    }

    pub(crate) fn word(&mut self) -> u32 {
        // If the system should have no more, the same numbers are returned again, which costs some
        // retries.
        if self.used + 4 > self.words.len() && self.fill().is_err() {
            self.used = 0;
        }
        let bytes = self.words[self.used..].first_chunk::<4>().copied().unwrap_or_default();
        self.used += 4;
        u32::from_ne_bytes(bytes)
    }
}

/// One source that several number spaces share.
pub(crate) struct Chances(Arc<Mutex<Random>>);

impl Chances {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Random::new()?))))
    }

    /// A handle for one more number space.
    pub(crate) fn another(&self) -> Chance {
        let random = Arc::clone(&self.0);
        Box::new(move || random.lock().word())
    }
}
