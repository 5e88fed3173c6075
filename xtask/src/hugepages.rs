//! Huge pages for tests: reserved in the kernel if this process may, and released later.
//!
//! If this process may not reserve them, the tests that need huge pages skip themselves. The
//! principal type is [`HugePages`].

use std::fs;

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
/// The number of pages of the usual size (2 MiB).
const WANTED: u64 = 16;

/// Huge pages that exist as long as this value. Dropping it restores the previous number.
#[derive(Debug)]
pub(crate) struct HugePages {
    before: Option<u64>,
}

impl HugePages {
    /// Reserves huge pages, unless there are enough or this process may not.
    pub(crate) fn reserve() -> Self {
        let before = fs::read_to_string(NUMBER).ok().and_then(|text| text.trim().parse().ok());
        let before = before.filter(|&number| number < WANTED && fs::write(NUMBER, WANTED.to_string()).is_ok());
        Self { before }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(number) = self.before {
            // Nothing depends on this number any more, so an error does not matter.
            let _ = fs::write(NUMBER, number.to_string());
        }
    }
}
