//! The count of mappings, in a separate process because it is a property of the process.
#![cfg(not(loom))]

use std::os::fd::AsFd;

use softhca_shm::{Region, WakeWord, WakeWordView, mapped_regions};

#[test]
#[allow(clippy::unwrap_used, reason = "a test")]
fn mapped_regions_counts() {
    assert_eq!(mapped_regions(), 0);
    let (first, fd) = Region::create("softhca-test", 4096).unwrap();
    let second = Region::map(fd.as_fd(), 4096).unwrap();
    assert_eq!(mapped_regions(), 2);
    assert!(Region::map(fd.as_fd(), 8192).is_err());
    assert_eq!(mapped_regions(), 2);
    let (wake_word, fd) = WakeWord::create().unwrap();
    let view = WakeWordView::map(fd.as_fd()).unwrap();
    assert_eq!(mapped_regions(), 4);
    drop((first, second, wake_word, view));
    assert_eq!(mapped_regions(), 0);
}
