//! Tests of range checks without an access to the range, and of fork marks.

use super::super::ForkMark;
use super::super::mappings::{
    MappingError, asked_page_size, by_each_way, by_msync_alone, check, is_huge, listed_page_size,
};
use super::{PAGE, Pages};

/// The result, which is the same from the kernel, from the list and from `check`.
fn ask(addr: u64, len: u64, need_write: bool) -> Result<(), MappingError> {
    let answer = check(addr, len, need_write);
    for (way, other) in by_each_way(addr, len, need_write) {
        assert_eq!(other, answer, "{way} {addr:#x} {len:#x}");
    }
    answer
}

#[test]
fn rights_are_checked_over_all_mappings_of_the_range() {
    let pages = Pages::new(6);
    pages.protect(1, libc::PROT_READ);
    pages.protect(3, libc::PROT_NONE);
    pages.unmap(5);
    let at = |page: usize| pages.address(page * PAGE);
    let page = PAGE as u64;

    assert_eq!(ask(at(0), page, true), Ok(()));
    assert_eq!(ask(at(0) + 100, page - 100, true), Ok(()));
    assert_eq!(ask(at(0), 3 * page, false), Ok(()), "several mappings");
    assert_eq!(ask(at(0) + 7, 3 * page - 7, true), Err(MappingError::NotWritable { at: at(1) }));
    assert_eq!(ask(at(1) + 9, 1, true), Err(MappingError::NotWritable { at: at(1) + 9 }));
    assert_eq!(ask(at(2), page + 1, false), Err(MappingError::NotReadable { at: at(3) }));
    assert_eq!(ask(at(2), page + 1, true), Err(MappingError::NotWritable { at: at(3) }));
    assert_eq!(ask(at(4), page, true), Ok(()));
    assert_eq!(ask(at(4) + 1, page, true), Err(MappingError::Unmapped { at: at(5) }));
    assert_eq!(ask(at(5) + 5, 1, false), Err(MappingError::Unmapped { at: at(5) + 5 }));
}

#[test]
fn the_ends_of_the_address_space_are_not_mapped() {
    assert_eq!(ask(0, 1, false), Err(MappingError::Unmapped { at: 0 }));
    assert_eq!(ask(1 << 63, 1, false), Err(MappingError::Unmapped { at: 1 << 63 }));
    assert_eq!(ask(u64::MAX, 1, false), Err(MappingError::Unmapped { at: u64::MAX }));
    let pages = Pages::new(2);
    pages.unmap(1);
    let around = ask(pages.address(0), u64::MAX, true);
    assert_eq!(around, Err(MappingError::Unmapped { at: pages.address(PAGE) }), "wraps around");
}

#[test]
fn without_the_list_a_hole_is_still_found() {
    let pages = Pages::new(3);
    pages.protect(0, libc::PROT_NONE);
    pages.unmap(2);
    assert_eq!(by_msync_alone(pages.address(10), PAGE as u64,), Ok(()));
    let beyond = by_msync_alone(pages.address(10), 2 * PAGE as u64);
    assert_eq!(beyond, Err(MappingError::Unmapped { at: pages.address(10) }));
    assert!(by_msync_alone(0, u64::MAX).is_err());
}

#[test]
fn no_bytes_are_fine_anywhere() {
    for address in [0, 1 << 63, u64::MAX] {
        assert_eq!(check(address, 0, true), Ok(()));
    }
}

#[test]
fn pages_are_not_touched() {
    let pages = Pages::new(64);
    assert_eq!(ask(pages.address(0), 64 * PAGE as u64, true), Ok(()));
    let mut resident = [0u8; 64];
    // SAFETY: the vector has a byte for each page of the range.
    assert_eq!(unsafe { libc::mincore(pages.at(0).cast(), 64 * PAGE, resident.as_mut_ptr()) }, 0);
    assert_eq!(resident, [0; 64]);
}

#[test]
fn a_child_knows_that_it_did_not_make_the_mark() {
    for mark in [ForkMark::new(), ForkMark::by_process_id()] {
        assert!(mark.made_here());
        // SAFETY: the child calls nothing but `made_here` and _exit, which take no lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let status = i32::from(mark.made_here());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        assert!(mark.made_here());
    }
}

#[test]
fn huge_pages_are_told_from_others() {
    const LEN: usize = 2 << 20;
    let pages = Pages::new(2);
    pages.unmap(1);
    for (at, size) in [(pages.address(5), PAGE as u64), (pages.address(PAGE), 0), (0, 0)] {
        assert_eq!(listed_page_size(at).expect("a list"), size, "{at:#x}");
        assert!(asked_page_size(at).is_none_or(|asked| asked == size), "{at:#x}");
        assert!(!is_huge(at), "{at:#x}");
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, without an access to it: there
    // may be no free huge page.
    let huge = unsafe { libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ, flags, -1, 0) };
    if huge == libc::MAP_FAILED {
        // A kernel without huge pages.
        return;
    }
    let at = huge as u64 + 4096;
    assert_eq!((listed_page_size(at).expect("a list"), is_huge(at)), (LEN as u64, true));
    assert!(asked_page_size(at).is_none_or(|asked| asked == LEN as u64));
    // SAFETY: the mapping made above, to which nothing refers.
    unsafe { libc::munmap(huge, LEN) };
}
