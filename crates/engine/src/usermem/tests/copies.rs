//! Tests of copies: correct at every length, every fault found on either side, and the order in
//! which a peer sees the bytes.

use super::super::copy::{copy_with_each, is_close_behind};
use super::super::{Fault, FaultSignal, Side, block_other_signals, copy, install, prepare_thread, stage};
use super::{PAGE, Pages, truncate};
use std::sync::atomic::{AtomicU8, Ordering};

/// Every length up to here, which covers every path of the short copies and both ends of the loops.
const SHORT: usize = 320;
const LONG: [usize; 8] = [511, 1000, 2048, 4095, 4096, 4097, 8191, 3 * PAGE + 77];

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn every_length_and_alignment_is_copied_and_nothing_else() {
    install().unwrap();
    let (source, destination) = (Pages::new(8), Pages::new(8));
    source.fill(0, 8 * PAGE, pattern);
    for len in (0..=SHORT).chain(LONG) {
        for (from, to) in [(0, 64), (1, 64), (0, 65), (7, 127), (16, 80), (63, 113), (0, 16), (2, 3)] {
            destination.fill(0, to + len + 64, |_| 255);
            let (dst, src) = (destination.at(to), source.at(from));
            let check = |name: &str, result: Result<(), Fault>| {
                assert_eq!(result, Ok(()), "{name} {len}");
                assert!(destination.holds(0, to, |_| 255), "{name} {len} before");
                assert!(destination.holds(to, len, |at| pattern(at - to + from)), "{name} {len} {from} {to}");
                assert!(destination.holds(to + len, 64, |_| 255), "{name} {len} behind");
                destination.fill(to, len, |_| 255);
            };
            // SAFETY: both are the test's own mappings, without references.
            unsafe { copy_with_each(dst, src, len, check) };
            // SAFETY: as above.
            unsafe { copy(dst, src, len) }.unwrap();
            assert!(destination.holds(to, len, |at| pattern(at - to + from)), "{len}");
            destination.fill(to, len, |_| 255);
            // SAFETY: as above.
            unsafe { stage(dst, src, len) }.unwrap();
            assert!(destination.holds(to, len, |at| pattern(at - to + from)), "staged {len}");
        }
    }
}

#[test]
fn a_destination_is_close_behind_its_source_for_63_distances_of_a_page() {
    let source = std::ptr::without_provenance::<u8>(5 * PAGE + 10);
    let close = |distance: usize| is_close_behind(source.wrapping_add(distance), source);
    let distances: Vec<usize> = (0..3 * PAGE).filter(|distance| close(*distance)).collect();
    assert_eq!(distances, (0..3).flat_map(|page| page * PAGE + 1..page * PAGE + 64).collect::<Vec<_>>());
    assert!(is_close_behind(source.wrapping_sub(2 * PAGE - 16), source), "also before the source");
}

/// One page with four inaccessible ones on each side.
fn holes() -> Pages {
    let pages = Pages::new(9);
    for page in [0, 1, 2, 3, 5, 6, 7, 8] {
        pages.protect(page, libc::PROT_NONE);
    }
    pages
}
const MIDDLE: usize = 4 * PAGE;
const HOLE_ABOVE: usize = 5 * PAGE;

fn assert_fault(result: Result<(), Fault>, side: Side, pages: &Pages, offset: usize, len: usize, what: &str) {
    let fault = result.expect_err(what);
    assert_eq!((fault.side, fault.signal), (side, FaultSignal::Segv), "{what}");
    let range = pages.address(offset)..pages.address(offset + len);
    assert!(range.contains(&fault.address), "{what}: {fault:?} outside {range:x?}");
    let middle = pages.address(MIDDLE)..pages.address(HOLE_ABOVE);
    assert!(!middle.contains(&fault.address), "{what}: {fault:?} is where the memory is");
}

#[test]
fn a_hole_is_found_at_every_offset_of_either_side() {
    install().unwrap();
    let (holed, whole) = (holes(), Pages::new(4));
    for len in (1..=SHORT).chain(LONG) {
        let step = if len <= 136 { 1 } else { len / 37 };
        for beyond in (1..=len).step_by(step) {
            for start in [HOLE_ABOVE + beyond - len, MIDDLE - beyond] {
                let what = |side: &str, name: &str| format!("{name}: {side} {len} bytes, {beyond} beyond, at {start}");
                let reading = |name: &str, result| {
                    assert_fault(result, Side::Read, &holed, start, len, &what("read", name));
                };
                // SAFETY: the test's own mappings; the holes are the point.
                unsafe { copy_with_each(whole.at(0), holed.at(start), len, reading) };
                let writing = |name: &str, result| {
                    assert_fault(result, Side::Write, &holed, start, len, &what("write", name));
                };
                // SAFETY: as above.
                unsafe { copy_with_each(holed.at(start), whole.at(0), len, writing) };
            }
        }
        if len > PAGE {
            continue;
        }
        // A range that just fits is copied.
        for start in [MIDDLE, HOLE_ABOVE - len] {
            // SAFETY: as above.
            unsafe { copy_with_each(whole.at(0), holed.at(start), len, |_, result| assert_eq!(result, Ok(()))) };
            // SAFETY: as above.
            unsafe { copy_with_each(holed.at(start), whole.at(0), len, |_, result| assert_eq!(result, Ok(()))) };
        }
    }
}

#[test]
fn read_only_memory_is_a_source_and_not_a_destination() {
    install().unwrap();
    let (fixed, other) = (Pages::new(4), Pages::new(4));
    for page in 0..4 {
        fixed.protect(page, libc::PROT_READ);
    }
    for len in [1, 8, 64, 128, 129, 1000, 4096, 3 * PAGE] {
        // SAFETY: the test's own mappings.
        unsafe { copy_with_each(other.at(5), fixed.at(3), len, |_, result| assert_eq!(result, Ok(()))) };
        let refused = |name: &str, result: Result<(), Fault>| {
            let fault = result.expect_err(name);
            assert_eq!((fault.side, fault.signal), (Side::Write, FaultSignal::Segv), "{name} {len}");
        };
        // SAFETY: as above.
        unsafe { copy_with_each(fixed.at(3), other.at(5), len, refused) };
    }
}

#[test]
fn a_file_cut_short_under_the_mapping_is_a_bus_fault() {
    install().unwrap();
    let ((mapped, file), other) = (Pages::of_file(4, 4), Pages::new(4));
    mapped.fill(0, 4 * PAGE, pattern);
    truncate(&file, 1);
    for len in [1, 9, 64, 100, 200, 4096, 3 * PAGE] {
        let start = PAGE - len.min(PAGE) + 1;
        for (dst, src, side) in
            [(other.at(0), mapped.at(start), Side::Read), (mapped.at(start), other.at(0), Side::Write)]
        {
            let cut = |name: &str, result: Result<(), Fault>| {
                let fault = result.expect_err(name);
                assert_eq!((fault.side, fault.signal), (side, FaultSignal::Bus), "{name} {len}");
                assert!(fault.address >= mapped.address(PAGE), "{name} {len} {fault:?}");
            };
            // SAFETY: the test's own mappings.
            unsafe { copy_with_each(dst, src, len, cut) };
        }
    }
}

#[test]
fn addresses_that_no_mapping_can_have_are_faults() {
    install().unwrap();
    let other = Pages::new(2);
    for address in [0u64, 8, 1 << 47, 1 << 63, 0xffff_8000_0000_0000, u64::MAX - 6, u64::MAX - 4095] {
        for len in [1, 4, 7, 64, 128, 200, 4096, 8000] {
            let nowhere = address as *mut u8;
            // SAFETY: nothing of Rust's is at these addresses.
            let read = unsafe { copy(other.at(0), nowhere, len) }.expect_err("read");
            assert_eq!((read.side, read.address), (Side::Read, read.address.max(address)), "{address:#x} {len}");
            // SAFETY: as above.
            let written = unsafe { copy(nowhere, other.at(0), len) }.expect_err("write");
            assert_eq!(written.side, Side::Write, "{address:#x} {len}");
            // SAFETY: as above.
            let staged = unsafe { stage(other.at(0), nowhere, len) }.expect_err("staged");
            assert_eq!(staged, read, "{address:#x} {len}");
        }
    }
}

#[test]
fn faults_in_many_threads_at_once_stay_apart() {
    install().unwrap();
    let (holed, whole) = (holes(), Pages::new(4));
    let (holed, whole) = (&holed, &whole);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            scope.spawn(move || {
                for round in 0..2000 {
                    let len = 1 + (round * 7 + thread * 331) % 9000;
                    let start = if round % 2 == 0 { HOLE_ABOVE - len / 2 } else { MIDDLE - len.div_ceil(2) - PAGE };
                    let what = format!("thread {thread} round {round}");
                    if thread % 2 == 0 {
                        // SAFETY: the test's own mappings; the holes are the point.
                        let result = unsafe { copy(whole.at(0), holed.at(start), len) };
                        assert_fault(result, Side::Read, holed, start, len, &what);
                    } else {
                        // SAFETY: as above.
                        let result = unsafe { copy(holed.at(start), whole.at(0), len) };
                        assert_fault(result, Side::Write, holed, start, len, &what);
                    }
                }
            });
        }
    });
}

#[test]
fn threads_that_block_signals_survive_faults() {
    install().unwrap();
    let nowhere = || {
        let mut byte = 0u8;
        // SAFETY: a local byte, and an address where nothing is.
        unsafe { copy(&raw mut byte, 16 as *const u8, 1) }.expect_err("nothing is mapped there");
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            block_other_signals();
            nowhere();
        });
        scope.spawn(move || {
            // As a program does that handles signals in one thread.
            let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: sigfillset initialises the set.
            unsafe { libc::sigfillset(all.as_mut_ptr()) };
            // SAFETY: initialised by the line before.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
            prepare_thread();
            nowhere();
            prepare_thread();
            nowhere();
        });
    });
}

/// A hole stops the copy at the first store that touches it; this shows the stores before it.
#[test]
fn stores_rise_and_whole_lines_come_before_the_last() {
    install().unwrap();
    let (holed, source) = (holes(), Pages::new(2));
    source.fill(0, 2 * PAGE, |_| 1);
    for len in (1..=136).chain([192, 193, 255, 320, 511, 2048, PAGE]) {
        for beyond in (1..=len).filter(|beyond| *beyond <= 66 || beyond % 16 == 0) {
            let here = len - beyond;
            // The beginning lies in the hole: nothing after it may have been written.
            holed.fill(MIDDLE, here, |_| 0);
            let below = |name: &str, _| assert!(holed.holds(MIDDLE, here, |_| 0), "{name} {len} {beyond}");
            // SAFETY: the test's own mappings; the holes are the point.
            unsafe { copy_with_each(holed.at(MIDDLE - beyond), source.at(0), len, below) };
            // The end lies in the hole, which begins with a line: the lines before it must have
            // been written. This is promised for destinations that begin with a line, and for the
            // last line of long ones.
            if here % 64 != 0 && (len <= 128 || beyond > 64) {
                continue;
            }
            let start = HOLE_ABOVE - here;
            let above = |name: &str, _| {
                assert!(holed.holds(start, here, |_| 1), "{name} {len} {beyond}");
                holed.fill(start, here, |_| 0);
            };
            holed.fill(start, here, |_| 0);
            // SAFETY: as above.
            unsafe { copy_with_each(holed.at(start), source.at(0), len, above) };
        }
    }
}

/// A peer that spins on the last byte must find all other bytes when it sees the last one.
#[test]
fn the_last_byte_comes_last() {
    const ROUNDS: u8 = 100;
    install().unwrap();
    let (source, destination) = (Pages::new(4), Pages::new(4));
    let (source, destination) = (&source, &destination);
    let seen = &AtomicU8::new(0);
    let wait_for = |byte: &AtomicU8, wanted: u8| {
        // Without a pause at first, to check as soon as it is there.
        for spin in 0u32.. {
            if byte.load(Ordering::Acquire) == wanted {
                break;
            }
            if spin > 10_000 {
                std::thread::yield_now();
            }
        }
    };
    let lengths = || (1..=130).step_by(3).chain([64, 192, 193, 255, 640, 1500, 4096, 4200, 9001]);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for len in lengths() {
                // SAFETY: mapped, and nobody makes a reference to it but to an atomic byte.
                let last = unsafe { AtomicU8::from_ptr(destination.at(len - 1)) };
                for round in 1..=ROUNDS {
                    wait_for(last, round);
                    let early = (0..len).rev().find(|&at| !destination.holds(at, 1, |_| round));
                    assert_eq!(early, None, "of {len} bytes, round {round}");
                    seen.store(round, Ordering::Release);
                }
            }
        });
        for len in lengths() {
            for round in 1..=ROUNDS {
                source.fill(0, len, |_| round);
                // SAFETY: the test's own mappings.
                unsafe { copy(destination.at(0), source.at(0), len) }.unwrap();
                wait_for(seen, round);
            }
            destination.fill(0, len, |_| 0);
            seen.store(0, Ordering::Release);
        }
    });
}
