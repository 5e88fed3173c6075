//! Which memory is shared from its allocation on: the decisions, which depend only on the numbers
//! of a request. Principal type: [`Choice`].

use libc::c_int;

/// The size of a page.
pub(crate) const PAGE: usize = 4096;

/// The least size of shared memory, if the user has chosen no other. From this size on, malloc of
/// the C library also makes a mapping for each block.
const USUAL: usize = 128 * 1024;

/// Flags of mmap(2) with which anonymous private memory may become shared. `MAP_FIXED` is not one
/// of them: it commits memory that the program has reserved before, in pieces of any size. Neither
/// are stacks and huge pages.
const KNOWN: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_LOCKED
    | libc::MAP_NONBLOCK
    | libc::MAP_32BIT;

/// The user's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Memory of at least this size is shared.
    pub(crate) least: usize,
}

impl Choice {
    /// Nothing is shared.
    pub(crate) const OFF: Self = Self { least: usize::MAX };

    /// Parses the value of the environment variable: 1 for the usual size, or a size in bytes of
    /// at least a page. Everything else is off.
    pub(crate) fn parse(value: &[u8]) -> Self {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<usize>().ok());
        match number {
            Some(1) => Self { least: USUAL },
            Some(least) if least >= PAGE => Self { least },
            _ => Self::OFF,
        }
    }

    /// Whether a block of `malloc` is shared. Memory that the program wants on a page boundary is
    /// shared from one page on: in most cases it is for a device.
    #[inline]
    pub(crate) fn wants_block(self, size: usize, align: usize) -> bool {
        let is_for_a_device = align >= PAGE && size >= PAGE && self != Self::OFF;
        (size >= self.least || is_for_a_device) && size < isize::MAX as usize / 8
    }

    /// Whether a mapping is shared.
    #[inline]
    pub(crate) fn wants_mapping(self, length: usize, protection: c_int, flags: c_int) -> bool {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        length >= self.least
            && protection == libc::PROT_READ | libc::PROT_WRITE
            && flags & anonymous == anonymous
            && flags & !KNOWN == 0
    }
}

/// A size in whole pages.
pub(crate) fn whole_pages(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(PAGE)
}

/// The length of the file of a block. `realloc` grows a block up to this length without a copy. A
/// file takes no memory where nothing is written.
pub(crate) fn file_length(length: usize) -> usize {
    length.saturating_mul(4)
}

/// Which descriptors may be used for files, so that the program gets the descriptors that it
/// expects and does not run out of them.
pub(crate) struct Descriptors {
    /// The lowest number.
    pub(crate) from: i32,
    /// How many.
    pub(crate) most: usize,
}

impl Descriptors {
    /// The highest first number: the kernel copies a table up to the highest descriptor at each
    /// fork.
    const HIGHEST: u64 = 3072;

    /// A quarter of the descriptors that the process may have, but at most 1024.
    pub(crate) fn of(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(u64::MAX);
        let from = (limit / 4).saturating_mul(3).min(Self::HIGHEST);
        Self { from: from as i32, most: (limit / 4).min(1024) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};

    const ON: Choice = Choice { least: USUAL };

    #[test]
    fn the_variable_switches_it_on_or_gives_a_size() {
        for (value, least) in [("1", USUAL), ("4096", 4096), ("1048576", 1 << 20)] {
            assert_eq!(Choice::parse(value.as_bytes()), Choice { least }, "{value}");
        }
        for off in ["", "0", "no", "2", "4095", "-1", "99999999999999999999999"] {
            assert_eq!(Choice::parse(off.as_bytes()), Choice::OFF, "{off}");
        }
    }

    #[test]
    fn large_blocks_and_whole_pages_on_a_page_boundary_are_shared() {
        for (size, align, expected) in [
            (USUAL, 16, true),
            (USUAL - 1, 16, false),
            (PAGE, PAGE, true),
            (PAGE - 1, PAGE, false),
            (PAGE, 2048, false),
            (usize::MAX, 16, false),
            (isize::MAX as usize, 16, false),
        ] {
            assert_eq!(ON.wants_block(size, align), expected, "{size} {align}");
            assert!(!Choice::OFF.wants_block(size, align));
        }
    }

    #[test]
    fn only_large_anonymous_private_memory_for_data_is_shared() {
        let (data, own) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        for flags in [own, own | libc::MAP_NORESERVE, own | libc::MAP_POPULATE, own | libc::MAP_LOCKED] {
            assert!(ON.wants_mapping(USUAL, data, flags), "{flags:#x}");
        }
        assert!(!ON.wants_mapping(USUAL - 1, data, own));
        assert!(!Choice::OFF.wants_mapping(USUAL, data, own));
        for protection in [0, PROT_READ, PROT_WRITE, data | libc::PROT_EXEC] {
            assert!(!ON.wants_mapping(USUAL, protection, own), "{protection}");
        }
        for flags in [
            MAP_PRIVATE,
            MAP_ANONYMOUS | libc::MAP_SHARED,
            own | libc::MAP_FIXED,
            own | libc::MAP_FIXED_NOREPLACE,
            own | libc::MAP_STACK,
            own | libc::MAP_GROWSDOWN,
            own | libc::MAP_HUGETLB,
        ] {
            assert!(!ON.wants_mapping(USUAL, data, flags), "{flags:#x}");
        }
    }

    #[test]
    fn three_quarters_of_the_descriptors_stay_the_programs() {
        for (limit, from, most) in
            [(Some(1024), 768, 256), (Some(20_000), 3072, 1024), (None, 3072, 1024), (Some(3), 0, 0)]
        {
            let found = Descriptors::of(limit);
            assert_eq!((found.from, found.most), (from, most), "{limit:?}");
        }
    }
}
