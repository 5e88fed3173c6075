//! How many bytes of clients' memory the agent has mapped, by user. This is memory that clients
//! have handed over for a proxy engine. [`crate::shares`] decides the limit. The principal type is
//! [`Mapped`].

use std::collections::BTreeMap;

/// The kernel maps whole pages.
const PAGE: u64 = 4096;

/// The counts.
#[derive(Debug, Default)]
pub struct Mapped {
    /// Regions and bytes of each user.
    by_user: BTreeMap<u32, (u64, u64)>,
    total: u64,
}

impl Mapped {
    /// The bytes of a user, with `more` bytes added.
    pub fn of(&self, uid: u32, more: u64) -> u64 {
        self.user(uid).1.saturating_add(pages(more))
    }

    /// How many regions a user has.
    pub fn regions(&self, uid: u32) -> u64 {
        self.user(uid).0
    }

    /// The bytes of all users, with `more` bytes added.
    pub fn total(&self, more: u64) -> u64 {
        self.total.saturating_add(pages(more))
    }

    /// Counts a region.
    pub fn add(&mut self, uid: u32, length: u64) {
        let (of_user, total) = (self.of(uid, length), self.total(length));
        self.by_user.insert(uid, (self.regions(uid) + 1, of_user));
        self.total = total;
    }

    /// Counts that a region has gone.
    pub fn remove(&mut self, uid: u32, length: u64) {
        let (regions, bytes) = self.user(uid);
        match regions {
            0 | 1 => drop(self.by_user.remove(&uid)),
            _ => drop(self.by_user.insert(uid, (regions - 1, bytes.saturating_sub(pages(length))))),
        }
        self.total = self.total.saturating_sub(pages(length));
    }

    fn user(&self, uid: u32) -> (u64, u64) {
        self.by_user.get(&uid).copied().unwrap_or_default()
    }
}

fn pages(length: u64) -> u64 {
    length.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_counted_in_whole_pages() {
        let mut mapped = Mapped::default();
        mapped.add(1, 1);
        mapped.add(1, 4096);
        mapped.add(2, 4097);
        assert_eq!((mapped.of(1, 0), mapped.of(2, 0), mapped.total(1)), (8192, 8192, 20_480));
        assert_eq!((mapped.regions(1), mapped.regions(2), mapped.regions(3)), (2, 1, 0));
        mapped.remove(1, 4096);
        mapped.remove(1, 1);
        mapped.remove(2, 4097);
        assert_eq!((mapped.of(1, 0), mapped.total(0), mapped.by_user.len()), (0, 0, 0));
        assert_eq!(mapped.of(3, u64::MAX), u64::MAX);
    }
}
