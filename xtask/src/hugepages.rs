//! Huge pages for tests that want some: asked of the kernel where this process may, and given back.
//!
//! Where it may not, those tests skip themselves. Principal type: [`HugePages`].

use std::fs;

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
/// So many of the usual size (2 MiB).
const WANTED: u64 = 16;

/// Huge pages that are there as long as this is; the number before comes back with its end.
#[derive(Debug)]
pub(crate) struct HugePages {
    before: Option<u64>,
}

impl HugePages {
    /// Has the kernel set some aside, unless there are enough or it is not allowed.
    pub(crate) fn reserve() -> Self {
        let before = fs::read_to_string(NUMBER).ok().and_then(|text| text.trim().parse().ok());
        let before = before.filter(|&number| number < WANTED && fs::write(NUMBER, WANTED.to_string()).is_ok());
        Self { before }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(number) = self.before {
            // Nothing depends on it any more.
            let _ = fs::write(NUMBER, number.to_string());
        }
    }
}
