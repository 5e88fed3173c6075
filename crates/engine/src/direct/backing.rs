//! Finds the file behind memory of this process, and opens a new descriptor of it. A peer needs the
//! descriptor to map the same memory.
//!
//! Only shared mappings of tmpfs files (memfds are tmpfs files) qualify: their memory is shared
//! anyway, and an access never waits for a disk. Principal type: [`Backing`].

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};

const PAGE: u64 = 4096;
/// The files of `libsofthca_shared.so` (`capi/shared-memory`). It uses a file for other memory
/// later, unless the file is marked.
const SHARED_FROM_BIRTH: &str = "/memfd:softhca-memory";
/// The type of tmpfs (statfs(2)).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Whole pages of memory that a file backs.
pub(super) struct Backing {
    pub(super) file: OwnedFd,
    /// The offset of the pages in the file.
    pub(super) offset: u64,
    /// The address of the pages in this process.
    pub(super) start: u64,
    pub(super) len: u64,
}

/// One mapping of `/proc/self/maps`.
#[derive(Debug, PartialEq, Eq)]
struct FileMapping<'a> {
    start: u64,
    end: u64,
    rights: &'a str,
    offset: u64,
    /// Major and minor number.
    device: (u32, u32),
    inode: u64,
    path: &'a str,
}

fn parse(line: &str) -> Option<FileMapping<'_>> {
    let mut rest = line;
    let mut field = || {
        let (field, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind;
        field
    };
    let (range, rights, offset, device, inode) = (field(), field(), field(), field(), field());
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    Some(FileMapping {
        start: hex(start)?,
        end: hex(end)?,
        rights,
        offset: hex(offset)?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        path: rest.trim_start(),
    })
}

/// The whole pages inside `len` bytes at `addr`, if one mapping covers them and its file can be
/// opened (for writing if `writable`).
pub(super) fn find(addr: u64, len: u64, writable: bool) -> Option<Backing> {
    let start = addr.checked_next_multiple_of(PAGE)?;
    let end = addr.checked_add(len)? / PAGE * PAGE;
    if start >= end {
        return None;
    }
    for line in BufReader::new(File::open("/proc/self/maps").ok()?).lines() {
        let line = line.ok()?;
        let mapping = parse(&line)?;
        if mapping.end <= start {
            continue;
        }
        if start < mapping.start || end > mapping.end {
            return None;
        }
        let fits = mapping.rights.ends_with('s')
            && mapping.rights.starts_with('r')
            && (!writable || mapping.rights[1..].starts_with('w'))
            && mapping.inode != 0;
        return fits.then(|| open(&mapping, writable)).flatten().map(|file| Backing {
            file,
            offset: mapping.offset + (start - mapping.start),
            start,
            len: end - start,
        });
    }
    None
}

/// A new open file description of a mapping's file, independent of the program's own.
fn open(mapping: &FileMapping<'_>, writable: bool) -> Option<OwnedFd> {
    let open = |path: &Path| {
        if mapping.path.starts_with(SHARED_FROM_BIRTH) {
            mark(&reopen(path, true, mapping)?)?;
        }
        reopen(path, writable, mapping)
    };
    // Only privileged processes may open this link. It certainly refers to the mapping's file.
    let direct = open(Path::new(&format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end)));
    let file = direct.or_else(|| by_path(mapping).and_then(open)).or_else(|| by_descriptor(mapping, &open))?;
    (is_tmpfs(&file) && file.metadata().is_ok_and(|data| data.is_file())).then(|| file.into())
}

fn reopen(path: &Path, writable: bool, mapping: &FileMapping<'_>) -> Option<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(writable).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK);
    how.open(path).ok().filter(|file| is_of(file, mapping))
}

/// Marks a file as granted, for good: seals its seals. The peer may keep it.
fn mark(file: &File) -> Option<()> {
    let is_marked = || fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SEAL));
    (is_marked() || fcntl_add_seals(file, SealFlags::SEAL).is_ok() || is_marked()).then_some(())
}

/// Whether an access to the file's memory never waits.
pub(super) fn is_tmpfs(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == TMPFS_MAGIC)
}

fn by_path<'a>(mapping: &FileMapping<'a>) -> Option<&'a Path> {
    let path = Path::new(mapping.path);
    let same = |data: std::fs::Metadata| data.is_file() && is_same(&data, mapping);
    // Checked before the open, because opening a wrong file can have side effects.
    std::fs::symlink_metadata(path).is_ok_and(same).then_some(path)
}

/// Reopens one of the program's open descriptors.
fn by_descriptor(mapping: &FileMapping<'_>, open: &dyn Fn(&Path) -> Option<File>) -> Option<File> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    entries.filter_map(Result::ok).map(|entry| entry.path()).find_map(|path| {
        // Compares the name first, because stat of a file on another file system may take long.
        let named = std::fs::read_link(&path).is_ok_and(|name| name.as_os_str() == mapping.path);
        let same = named && std::fs::metadata(&path).is_ok_and(|data| data.is_file() && is_same(&data, mapping));
        if same { open(&path) } else { None }
    })
}

fn is_of(file: &File, mapping: &FileMapping<'_>) -> bool {
    file.metadata().is_ok_and(|data| is_same(&data, mapping))
}

fn is_same(data: &std::fs::Metadata, mapping: &FileMapping<'_>) -> bool {
    let device = (rustix::fs::major(data.dev()), rustix::fs::minor(data.dev()));
    (device, data.ino()) == (mapping.device, mapping.inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_is_parsed() {
        let line = "7f1c-7f2d rw-s 00001000 00:1c 42                         /dev/shm/a b (deleted)";
        let expected = FileMapping {
            start: 0x7f1c,
            end: 0x7f2d,
            rights: "rw-s",
            offset: 0x1000,
            device: (0, 0x1c),
            inode: 42,
            path: "/dev/shm/a b (deleted)",
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse("7f1c-7f2d rw-p 00000000 00:00 0 ").map(|mapping| mapping.inode), Some(0));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn private_memory_has_none() {
        let memory = vec![0u8; 64 * 1024];
        assert!(find(memory.as_ptr() as u64, memory.len() as u64, true).is_none());
    }

    #[test]
    fn whole_pages_of_a_memfd_are_found_by_the_descriptor_and_are_the_same_memory() {
        use std::os::unix::fs::FileExt;
        let (region, fd) = shm::Region::create("backing", 8 * 4096).expect("a region");
        let base = region.pointer(0, 1).expect("its start").as_ptr() as u64;
        let found = find(base + 100, 8 * 4096 - 200, true).expect("a file");
        assert_eq!((found.start, found.len, found.offset), (base + 4096, 6 * 4096, 4096));
        File::from(found.file).write_all_at(b"here", found.offset).expect("written");
        let mut bytes = [0; 4];
        region.copy_out(4096, &mut bytes);
        assert_eq!(&bytes, b"here");
        assert!(find(base + 100, 4096, true).is_none(), "no whole page");
        assert!(find(base, 16 * 4096, true).is_none(), "longer than the mapping");
        drop(fd);
    }
}
