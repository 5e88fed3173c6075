//! Checks whether a range is mapped, and with which rights, without an access to its pages;
//! `reg_mr` needs this.
//!
//! The kernel is asked for one mapping after the other (PROCMAP_QUERY, Linux 6.11). On older
//! kernels, the list of all mappings is read. The answer may be out of date at once, because the
//! program may change its mappings; so copies are fault-safe nevertheless. Rights are checked as
//! hardware drivers do, which pin pages for writing or for reading: if write access is wanted, a
//! mapping suffices that is writable but, by its flags, not readable. Principal functions:
//! [`check`] and [`is_huge`].

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;

/// Why a range cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// Part of it is not mapped.
    #[error("nothing is mapped at {at:#x}")]
    Unmapped {
        /// The first address in the range where nothing is mapped.
        at: u64,
    },
    /// Write access is wanted, and part of it is not writable.
    #[error("the memory at {at:#x} is mapped without the right to write")]
    NotWritable {
        /// The first such address in the range.
        at: u64,
    },
    /// Part of it cannot be read.
    #[error("the memory at {at:#x} is mapped without the right to read")]
    NotReadable {
        /// The first such address in the range.
        at: u64,
    },
}

/// Checks that all of `len` bytes at `addr` are mapped and writable (`need_write`) or readable. An
/// empty range is always valid. A range that passes the end of the address space is not mapped
/// there.
///
/// Without `/proc`, only the mapping is checked; missing rights then show at the first copy.
///
/// # Errors
///
/// The lowest address that fails the check.
pub fn check(addr: u64, len: u64, need_write: bool) -> Result<(), MappingError> {
    if len == 0 {
        return Ok(());
    }
    let range = NeededRange::new(addr, len, need_write);
    let Ok(maps) = File::open("/proc/self/maps") else {
        return by_msync(&range);
    };
    by_query(&maps, &range)
        .or_else(|_| by_list(BufReader::with_capacity(LIST_BUFFER, maps), &range))
        .unwrap_or_else(|_| by_msync(&range))
}

/// Whether huge pages are mapped at `addr`; true if that is unknown.
#[must_use]
pub fn is_huge(addr: u64) -> bool {
    asked_page_size(addr).or_else(|| listed_page_size(addr).ok()).is_none_or(|size| size > PAGE)
}

/// The page size at `addr`, 0 if nothing is mapped, if the kernel supports the query.
pub(super) fn asked_page_size(addr: u64) -> Option<u64> {
    let maps = File::open("/proc/self/maps").ok()?;
    ask(&maps, addr, 0).ok().map(|found| found.map_or(0, |found| found.vma_page_size))
}

/// The page size at `addr`, from the long list of all mappings.
pub(super) fn listed_page_size(addr: u64) -> io::Result<u64> {
    page_size_in(BufReader::with_capacity(LIST_BUFFER, File::open("/proc/self/smaps")?), addr)
}

/// The result of each method, by name; only that of the list if the kernel is too old for the
/// query.
#[cfg(test)]
pub(super) fn by_each_way(
    addr: u64,
    len: u64,
    need_write: bool,
) -> impl Iterator<Item = (&'static str, Result<(), MappingError>)> {
    let range = NeededRange::new(addr, len, need_write);
    let maps = || File::open("/proc/self/maps").expect("tests need /proc");
    let asked = by_query(&maps(), &range).ok().map(|answer| ("query", answer));
    let listed = by_list(BufReader::new(maps()), &range).expect("the list is readable");
    asked.into_iter().chain([("list", listed)])
}

/// Enough for a few hundred mappings per read.
const LIST_BUFFER: usize = 32 * 1024;

struct NeededRange {
    addr: u64,
    /// The last byte, so that a range may end with the address space.
    last: u64,
    need_write: bool,
}

struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

impl NeededRange {
    /// `len` is not 0.
    fn new(addr: u64, len: u64, need_write: bool) -> NeededRange {
        NeededRange { addr, last: addr.saturating_add(len - 1), need_write }
    }

    /// The range is checked up to `at`, and `next` is the first mapping that ends after it; returns
    /// up to where the range is checked now.
    fn advance(&self, at: u64, next: Option<&Mapping>) -> Result<u64, MappingError> {
        match next {
            Some(mapping) if mapping.start <= at => match self.need_write {
                true if !mapping.writable => Err(MappingError::NotWritable { at }),
                false if !mapping.readable => Err(MappingError::NotReadable { at }),
                _ => Ok(mapping.end),
            },
            _ => Err(MappingError::Unmapped { at }),
        }
    }
}

/// Queries one mapping at a time. The outer error means that the kernel does not support the query.
fn by_query(maps: &File, range: &NeededRange) -> io::Result<Result<(), MappingError>> {
    let mut at = range.addr;
    while at <= range.last {
        match range.advance(at, query(maps, at)?.as_ref()) {
            Ok(end) => at = end,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}

/// Reads the list of all mappings, which is sorted.
fn by_list(mut list: impl BufRead, range: &NeededRange) -> io::Result<Result<(), MappingError>> {
    let mut at = range.addr;
    let mut line = Vec::new();
    while at <= range.last {
        line.clear();
        let next = if list.read_until(b'\n', &mut line)? == 0 { None } else { Some(parse(&line)?) };
        if next.as_ref().is_some_and(|mapping| mapping.end <= at) {
            continue;
        }
        match range.advance(at, next.as_ref()) {
            Ok(end) => at = end,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}

/// One line of `/proc/self/maps`: `start-end rwxp …`, hexadecimal.
fn parse(line: &[u8]) -> io::Result<Mapping> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a line of /proc/self/maps that says something else");
    let text = str::from_utf8(line.get(..line.len().min(64)).unwrap_or(line)).or_else(|error| {
        // The name at the end may be any bytes.
        str::from_utf8(&line[..error.valid_up_to()])
    });
    let mut words = text.map_err(|_| malformed())?.split_ascii_whitespace();
    let (start, end) = words.next().and_then(|range| range.split_once('-')).ok_or_else(malformed)?;
    let rights = words.next().map(str::as_bytes).filter(|rights| rights.len() == 4).ok_or_else(malformed)?;
    Ok(Mapping {
        start: u64::from_str_radix(start, 16).map_err(|_| malformed())?,
        end: u64::from_str_radix(end, 16).map_err(|_| malformed())?,
        readable: rights[0] == b'r',
        writable: rights[1] == b'w',
    })
}

fn page_size_in(list: impl BufRead, addr: u64) -> io::Result<u64> {
    let mut inside = false;
    for line in list.split(b'\n') {
        let line = line?;
        if let Ok(mapping) = parse(&line) {
            inside = (mapping.start..mapping.end).contains(&addr);
            if mapping.start > addr {
                break;
            }
        } else if inside && let Some(size) = line.strip_prefix(b"KernelPageSize:") {
            let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a page size that is no number of kB");
            let size = str::from_utf8(size).map_err(|_| malformed())?;
            let kb = size.trim().strip_suffix(" kB").and_then(|kb| kb.trim().parse::<u64>().ok());
            return kb.map(|kb| kb * 1024).ok_or_else(malformed);
        }
    }
    Ok(0)
}

/// Checks only whether something is mapped, as without `/proc`.
#[cfg(test)]
pub(super) fn by_msync_alone(addr: u64, len: u64) -> Result<(), MappingError> {
    by_msync(&NeededRange::new(addr, len, true))
}

/// The check without `/proc`: an asynchronous msync does nothing, but reports a hole.
fn by_msync(range: &NeededRange) -> Result<(), MappingError> {
    let start = range.addr & !(PAGE - 1);
    // More than half of all addresses is never mapped, and the length would wrap around when the
    // kernel rounds it up to pages.
    let Ok(length) = i64::try_from(range.last - start) else {
        return Err(MappingError::Unmapped { at: range.addr });
    };
    // SAFETY: MS_ASYNC neither reads nor writes the memory, and the kernel checks the range.
    if unsafe { libc::msync(start as *mut libc::c_void, length as usize + 1, libc::MS_ASYNC) } == 0 {
        return Ok(());
    }
    Err(MappingError::Unmapped { at: range.addr })
}

const PAGE: u64 = 4096;

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xC068_6611;
const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;
const COVERING_OR_NEXT_VMA: u64 = 16;

/// The mapping that contains `at`, or else the next one above, if there is one.
fn query(maps: &File, at: u64) -> io::Result<Option<Mapping>> {
    Ok(ask(maps, at, COVERING_OR_NEXT_VMA)?.map(|found| Mapping {
        start: found.vma_start,
        end: found.vma_end,
        readable: found.vma_flags & VMA_READABLE != 0,
        writable: found.vma_flags & VMA_WRITABLE != 0,
    }))
}

fn ask(maps: &File, at: u64, query_flags: u64) -> io::Result<Option<Query>> {
    let mut query = Query { size: size_of::<Query>() as u64, query_flags, query_addr: at, ..Query::default() };
    // SAFETY: the kernel reads and writes a `struct procmap_query` of the size given in it; no name
    // or build id is requested, so it accesses no other memory.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    Ok(Some(query))
}
