//! Tests of atomics: their results, that they are atomic with those of other threads, and their
//! faults.

use super::super::{Fault, FaultSignal, Side, compare_swap, fetch_add, install, load};
use super::{Pages, truncate};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn they_answer_what_the_word_held() {
    install().unwrap();
    let pages = Pages::new(1);
    let word = pages.at(8).cast::<u64>();
    // SAFETY: the test's own mapping.
    let add = |addend| unsafe { fetch_add(word, addend) };
    // SAFETY: as above.
    let swap = |compare, swap| unsafe { compare_swap(word, compare, swap) };
    // SAFETY: as above.
    let held = || unsafe { load(word) };
    assert_eq!(add(5), Ok(0));
    assert_eq!(swap(4, 100), Ok(5));
    assert_eq!(held(), Ok(5));
    assert_eq!(swap(5, u64::MAX), Ok(5));
    assert_eq!(add(2), Ok(u64::MAX));
    assert_eq!(held(), Ok(1));
    assert!(pages.holds(0, 8, |_| 0) && pages.holds(16, 8, |_| 0));
}

#[test]
fn they_are_atomic_with_other_threads() {
    const ROUNDS: u64 = 20_000;
    install().unwrap();
    let pages = &Pages::new(1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    // SAFETY: the test's own mapping.
                    unsafe { fetch_add(pages.at(0).cast(), 1) }.unwrap();
                }
            });
            scope.spawn(move || {
                // SAFETY: mapped and aligned, and only changed atomically.
                let word = unsafe { AtomicU64::from_ptr(pages.at(0).cast()) };
                for _ in 0..ROUNDS {
                    word.fetch_add(1 << 32, Ordering::Relaxed);
                }
            });
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    // SAFETY: the test's own mapping.
                    let mut held = unsafe { load(pages.at(0).cast()) }.unwrap();
                    loop {
                        // SAFETY: as above.
                        let found = unsafe { compare_swap(pages.at(0).cast(), held, held + (1 << 16)) }.unwrap();
                        if found == held {
                            break;
                        }
                        held = found;
                    }
                }
            });
        }
    });
    let total = 2 * ROUNDS + ((2 * ROUNDS) << 16) + ((2 * ROUNDS) << 32);
    // SAFETY: the test's own mapping.
    assert_eq!(unsafe { load(pages.at(0).cast()) }, Ok(total));
}

#[test]
fn their_faults_name_the_word() {
    install().unwrap();
    let (fixed, (cut, file)) = (Pages::new(1), Pages::of_file(1, 1));
    fixed.protect(0, libc::PROT_READ);
    truncate(&file, 0);
    let nowhere = 4096u64;
    for (address, signal, readable) in [
        (nowhere, FaultSignal::Segv, false),
        (1 << 63, FaultSignal::Segv, false),
        (fixed.address(8), FaultSignal::Segv, true),
        (cut.address(16), FaultSignal::Bus, false),
    ] {
        let word = address as *mut u64;
        let refused = Err(Fault { side: Side::Write, signal, address });
        // SAFETY: nothing of Rust's is there.
        assert_eq!(unsafe { fetch_add(word, 1) }, refused);
        // SAFETY: as above.
        assert_eq!(unsafe { compare_swap(word, 0, 1) }, refused);
        let read = if readable { Ok(0) } else { Err(Fault { side: Side::Read, signal, address }) };
        // SAFETY: as above.
        assert_eq!(unsafe { load(word) }, read);
    }
}
