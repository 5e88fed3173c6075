//! Tests of guarded copies and atomics: all lengths, changed guard words, faults, and threads that
//! are interrupted all the time.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{PAGE, Pages, truncate};
use crate::usermem::guarded::{GuardWord, NotDone, PIECE, compare_swap, copy, exists, fetch_add};

/// The life word of an owner that stays alive.
static LIFE: AtomicU32 = AtomicU32::new(77);

fn open(word: &AtomicU32) -> GuardWord<'_> {
    GuardWord { word, number: word.load(Ordering::Relaxed), life: &LIFE }
}

#[test]
fn every_length_is_copied_and_nothing_else() {
    super::super::install().unwrap();
    assert!(exists(), "the C library of the machine that tests registers its threads");
    let word = AtomicU32::new(7);
    let lengths = (0..300).chain(2030..2080).chain([4096, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5]);
    let source: Vec<u8> = (0..4 * PIECE).map(|at| (at * 31 + at / 256) as u8 | 1).collect();
    for len in lengths {
        for shift in [0, 3] {
            let mut to = vec![0u8; len + 64];
            let at = to.as_mut_ptr().wrapping_add(16 + shift);
            // SAFETY: both ranges are the test's and long enough.
            unsafe { copy(open(&word), at, source.as_ptr().wrapping_add(shift), len) }.unwrap();
            assert!(to[..16 + shift].iter().chain(&to[16 + shift + len..]).all(|byte| *byte == 0), "{len} + {shift}");
            assert!(to[16 + shift..][..len] == source[shift..][..len], "{len} + {shift}");
        }
    }
}

/// Another loop copies to such a destination.
#[test]
fn every_length_is_copied_to_close_behind_the_source_modulo_a_page() {
    super::super::install().unwrap();
    let word = AtomicU32::new(7);
    let source: Vec<u8> = (0..2 * PIECE).map(|at| (at * 31 + at / 256) as u8 | 1).collect();
    for len in (2048..2100).chain([4096, PIECE, PIECE + 20]) {
        for behind in [1, 16, 63] {
            let mut to = vec![0u8; len + 2 * PAGE];
            let begin = (source.as_ptr().addr() + behind).wrapping_sub(to.as_ptr().addr()) % PAGE;
            let at = to.as_mut_ptr().wrapping_add(begin);
            // SAFETY: both ranges are the test's and long enough.
            unsafe { copy(open(&word), at, source.as_ptr(), len) }.unwrap();
            assert!(to[..begin].iter().chain(&to[begin + len..]).all(|byte| *byte == 0), "{len} {behind}");
            assert!(to[begin..][..len] == source[..len], "{len} {behind}");
        }
    }
}

#[test]
fn nothing_is_done_after_the_guard_word_changed() {
    let word = AtomicU32::new(0);
    does_nothing(GuardWord { word: &word, number: 7, life: &LIFE });
}

#[test]
fn nothing_is_done_after_the_granter_has_ended() {
    let (word, life) = (AtomicU32::new(7), AtomicU32::new(shm::life::ENDED));
    does_nothing(GuardWord { word: &word, number: 7, life: &life });
}

fn does_nothing(guard: GuardWord<'_>) {
    let mut to = [5u64; 8];
    for len in [1, 2, 3, 4, 7, 8, 15, 16, 17, 64] {
        // SAFETY: both ranges are the test's.
        let done = unsafe { copy(guard, to.as_mut_ptr().cast(), [9u8; 64].as_ptr(), len) };
        assert_eq!(done, Err(NotDone::Revoked), "{len}");
    }
    // SAFETY: the test's own word.
    assert_eq!(unsafe { fetch_add(guard, &raw mut to[0], 1) }, Err(NotDone::Revoked));
    // SAFETY: as above.
    assert_eq!(unsafe { compare_swap(guard, &raw mut to[0], 5, 6) }, Err(NotDone::Revoked));
    assert_eq!(to, [5; 8]);
}

#[test]
fn atomics_answer_what_stood_there() {
    let word = AtomicU32::new(7);
    let mut value = 5u64;
    // SAFETY: the test's own word, each time.
    assert_eq!(unsafe { fetch_add(open(&word), &raw mut value, 3) }, Ok(5));
    // SAFETY: as above.
    assert_eq!(unsafe { compare_swap(open(&word), &raw mut value, 5, 9) }, Ok(8));
    // SAFETY: as above.
    assert_eq!(unsafe { compare_swap(open(&word), &raw mut value, 8, 9) }, Ok(8));
    assert_eq!(value, 9);
}

#[test]
fn a_fault_in_a_guarded_copy_is_a_value() {
    super::super::install().unwrap();
    let (pages, file) = Pages::of_file(4, 4);
    truncate(&file, 1);
    let word = AtomicU32::new(7);
    let mut own = vec![1u8; 3 * PAGE];
    for len in [1, 2, 4, 8, 16, 100, 3 * PAGE] {
        let at = pages.at(PAGE);
        // SAFETY: the mapping is the test's; it has nothing behind it any more.
        assert_eq!(unsafe { copy(open(&word), at, own.as_ptr(), len) }, Err(NotDone::Fault), "writing {len}");
        // SAFETY: as above.
        assert_eq!(unsafe { copy(open(&word), own.as_mut_ptr(), at, len) }, Err(NotDone::Fault), "reading {len}");
    }
    // SAFETY: as above.
    assert_eq!(unsafe { fetch_add(open(&word), pages.at(PAGE).cast(), 1) }, Err(NotDone::Fault));
    // SAFETY: as above.
    assert_eq!(unsafe { compare_swap(open(&word), pages.at(PAGE).cast(), 1, 2) }, Err(NotDone::Fault));
    // SAFETY: as above. The bytes before the end are still there.
    assert_eq!(unsafe { copy(open(&word), pages.at(0), own.as_ptr(), PAGE) }, Ok(()));
}

/// What the signal handler does to the interrupted thread.
static SHUTS: AtomicBool = AtomicBool::new(false);
static WORD: AtomicU32 = AtomicU32::new(0);
static MEMORY: AtomicUsize = AtomicUsize::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED: AtomicU32 = AtomicU32::new(0);

/// A checksum of the first and the last byte of a piece and some between. These suffice, because
/// all bytes of a piece have one value.
fn sum() -> u64 {
    let memory: *const u8 = std::ptr::with_exposed_provenance(MEMORY.load(Ordering::Relaxed));
    let at = |index: usize| {
        // SAFETY: inside the memory that the test has put there, of a piece.
        u64::from(unsafe { memory.wrapping_add(index).read_volatile() })
    };
    (0..PIECE).step_by(61).chain([PIECE - 1]).fold(0u64, |sum, index| sum.wrapping_mul(257).wrapping_add(at(index)))
}

extern "C" fn handler(_: libc::c_int) {
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    if SHUTS.load(Ordering::Relaxed) && MEMORY.load(Ordering::Relaxed) != 0 {
        // A granter does this while this thread is stopped.
        WORD.store(0, Ordering::SeqCst);
        SUM.store(sum(), Ordering::SeqCst);
    }
}

/// Runs `work` in a thread that gets signals all the time.
fn interrupted<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // SAFETY: a handler that only touches atomics, and memory of the test.
    unsafe { libc::signal(libc::SIGUSR2, handler as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let (number, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: asks for the calling thread's own name.
            number.store(unsafe { libc::pthread_self() }, Ordering::SeqCst);
            let result = work();
            done.store(true, Ordering::SeqCst);
            // Signals may come until the sender has stopped.
            while number.load(Ordering::SeqCst) != 0 {
                std::thread::yield_now();
            }
            result
        });
        while !done.load(Ordering::SeqCst) {
            let thread = number.load(Ordering::SeqCst);
            if thread != 0 {
                // SAFETY: the thread waits for `number` to become 0 before it ends.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            }
            (0..100).for_each(|_| std::hint::spin_loop());
        }
        number.store(0, Ordering::SeqCst);
        worker.join().unwrap()
    })
}

#[test]
fn an_interrupted_access_happens_once_and_never_after_revocation() {
    super::super::install().unwrap();
    // Atomics first: each is done once, even if it was begun several times.
    let word = AtomicU32::new(7);
    let mut value = 0u64;
    let place = (&raw mut value).expose_provenance();
    let (mut done, mut seen) = (0u64, true);
    (done, seen) = interrupted(move || {
        while INTERRUPTED.load(Ordering::Relaxed) < 3000 {
            // SAFETY: the word outlives the thread.
            let before = unsafe { fetch_add(open(&word), std::ptr::with_exposed_provenance_mut(place), 1) };
            match before {
                Ok(before) => (done, seen) = (done + 1, seen && before == done),
                Err(why) => assert_eq!(why, NotDone::Interrupted),
            }
        }
        (done, seen)
    });
    // SAFETY: the thread is over.
    assert_eq!((unsafe { (&raw const value).read_volatile() }, seen), (done, true));

    // Now the handler changes the guard word: the bytes that it finds must stay.
    let mut to = vec![0u8; PIECE];
    let mut shut = 0;
    MEMORY.store(to.as_mut_ptr().expose_provenance(), Ordering::SeqCst);
    SHUTS.store(true, Ordering::SeqCst);
    shut += interrupted(|| {
        let (mut shut, mut value) = (0, 0u8);
        while shut < 500 {
            value = value.wrapping_add(1);
            let from = [value; PIECE];
            WORD.store(9, Ordering::SeqCst);
            let to = std::ptr::with_exposed_provenance_mut(MEMORY.load(Ordering::Relaxed));
            // SAFETY: both are of a piece's length.
            let done = unsafe { copy(GuardWord { word: &WORD, number: 9, life: &LIFE }, to, from.as_ptr(), PIECE) };
            if done == Err(NotDone::Revoked) {
                shut += 1;
                assert_eq!(sum(), SUM.load(Ordering::SeqCst), "written after the grant was revoked");
            }
        }
        shut
    });
    SHUTS.store(false, Ordering::SeqCst);
    MEMORY.store(0, Ordering::SeqCst);
    assert_eq!(shut, 500);
}

/// An interruption between the check and the store is too rare to wait for. So the test checks each
/// sequence as the kernel sees it.
#[test]
fn each_sequence_begins_with_the_look() {
    const ARM: [u8; 3] = [0x4c, 0x8d, 0x15]; // lea r10, [rip + …]
    const STORE: [u8; 4] = [0x4d, 0x89, 0x51, 0x08]; // mov [r9 + 8], r10
    const LOOK: [u8; 3] = [0x44, 0x39, 0x01]; // cmp [rcx], r8d
    let range = super::super::guarded::range();
    let (begin, len) = (range.begin as usize, (range.end - range.begin) as usize);
    // SAFETY: the routines, which are never written.
    let code = unsafe { std::slice::from_raw_parts(begin as *const u8, len) };
    let mut sequences = 0;
    for at in (0..len - 14).filter(|&at| code[at..].starts_with(&ARM) && code[at + 7..].starts_with(&STORE)) {
        let away = i32::from_le_bytes([code[at + 3], code[at + 4], code[at + 5], code[at + 6]]);
        let sequence = (begin + at + 7).wrapping_add_signed(away as isize) as *const u64;
        // SAFETY: what the kernel is told: two words of four bytes, and three of eight, of which
        // the first is where it begins.
        let from = unsafe { sequence.add(1).read() } as usize;
        assert_eq!(from, begin + at + 11, "nothing lies between");
        assert!(code[at + 11..].starts_with(&LOOK), "it is the look");
        sequences += 1;
    }
    assert_eq!(sequences, 7);
}
