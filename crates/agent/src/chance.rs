//! Numbers that nobody can guess: the system's, got ahead in small portions. Principal type: [`Random`].

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::numbers::Chance;

/// Numbers that nobody can guess.
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
        // The system always has more; if not, the same numbers come again, which costs some retries.
        if self.used + 4 > self.words.len() && self.fill().is_err() {
            self.used = 0;
        }
        let bytes = self.words[self.used..].first_chunk::<4>().copied().unwrap_or_default();
        self.used += 4;
        u32::from_ne_bytes(bytes)
    }
}

/// One source for several who need numbers.
pub(crate) struct Chances(Arc<Mutex<Random>>);

impl Chances {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Random::new()?))))
    }

    /// For one more.
    pub(crate) fn another(&self) -> Chance {
        let random = Arc::clone(&self.0);
        Box::new(move || random.lock().word())
    }
}
