//! Atomic operations on user memory that survive a fault, as [`super::copy()`] does for copies.
//!
//! They are the processor's own locked instructions. So they are atomic with each other, and with
//! every other thread or process that uses atomic instructions on the word. A plain store of the
//! program races with them, as it does with hardware that offers `IBV_ATOMIC_GLOB`. The word must
//! be aligned to 8 bytes; the IBA demands this of the address of an atomic request, and the engine
//! checks it before it calls these functions. Principal functions: [`compare_swap`] and
//! [`fetch_add`].

use std::arch::global_asm;

use super::outcome::{Fault, Outcome, Range};

/// Replaces the word with `swap` if it holds `compare`. Returns the old value in both cases.
///
/// # Errors
///
/// The fault, which is always a write: the instruction requests write access before it compares.
///
/// # Safety
///
/// The word need not be mapped. If it is mapped, it must be memory that the program handed over for
/// this purpose: no Rust reference to it may be alive, except one to an `AtomicU64`.
pub unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    // SAFETY: the routine keeps to the C ABI and touches only the word, which the caller vouches
    // for.
    let outcome = unsafe { softhca_usermem_compare_swap(word, compare, swap) };
    answer(outcome, word)
}

/// Adds `addend` to `word`, wrapping around. Returns the old value.
///
/// # Errors
///
/// The fault, which is always a write.
///
/// # Safety
///
/// As for [`compare_swap`].
pub unsafe fn fetch_add(word: *mut u64, addend: u64) -> Result<u64, Fault> {
    // SAFETY: the routine keeps to the C ABI and touches only the word, which the caller vouches
    // for.
    let outcome = unsafe { softhca_usermem_fetch_add(word, addend) };
    answer(outcome, word)
}

/// Stores `value` in `word`. Returns the old value.
///
/// # Errors
///
/// The fault, which is always a write.
///
/// # Safety
///
/// As for [`compare_swap`].
pub unsafe fn swap(word: *mut u64, value: u64) -> Result<u64, Fault> {
    // SAFETY: the routine keeps to the C ABI and touches only the word, which the caller vouches
    // for.
    let outcome = unsafe { softhca_usermem_swap(word, value) };
    answer(outcome, word)
}

/// Reads `word` with one acquire load: writes that were made before the value was stored are
/// visible after it.
///
/// # Errors
///
/// The fault, which is a read.
///
/// # Safety
///
/// As for [`compare_swap`].
pub unsafe fn load(word: *const u64) -> Result<u64, Fault> {
    // SAFETY: the routine keeps to the C ABI and touches only the word, which the caller vouches
    // for.
    let outcome = unsafe { softhca_usermem_load(word) };
    if outcome.is_done() { Ok(outcome.value) } else { Err(outcome.fault_of_load(word as u64)) }
}

#[inline]
fn answer(outcome: Outcome, word: *mut u64) -> Result<u64, Fault> {
    if outcome.is_done() { Ok(outcome.value) } else { Err(outcome.fault_of_update(word as u64)) }
}

/// The addresses of the routines, for the fault table.
pub(super) fn range() -> Range {
    Range {
        begin: &raw const softhca_usermem_atomic_begin as u64,
        end: &raw const softhca_usermem_atomic_end as u64,
        fixup: &raw const softhca_usermem_atomic_fixup as u64,
    }
}

unsafe extern "C" {
    fn softhca_usermem_compare_swap(word: *mut u64, compare: u64, swap: u64) -> Outcome;
    fn softhca_usermem_fetch_add(word: *mut u64, addend: u64) -> Outcome;
    fn softhca_usermem_swap(word: *mut u64, value: u64) -> Outcome;
    fn softhca_usermem_load(word: *const u64) -> Outcome;
    static softhca_usermem_atomic_begin: u8;
    static softhca_usermem_atomic_end: u8;
    static softhca_usermem_atomic_fixup: u8;
}

// rdi = word, rsi and rdx the operands; returns the Outcome in rax (0: done) and rdx (the old value
// of the word).
global_asm!(
    ".pushsection .text.softhca_usermem_atomic, \"ax\", @progbits",
    ".irp name, begin, end, fixup",
    ".globl softhca_usermem_atomic_\\name",
    ".hidden softhca_usermem_atomic_\\name",
    ".endr",
    ".irp name, compare_swap, fetch_add, swap, load",
    ".globl softhca_usermem_\\name",
    ".hidden softhca_usermem_\\name",
    ".type softhca_usermem_\\name, @function",
    ".endr",
    ".p2align 5",
    ".cfi_startproc",
    "softhca_usermem_atomic_begin:",
    "softhca_usermem_compare_swap:",
    "mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "mov rdx, rax",
    "xor eax, eax",
    "ret",
    "softhca_usermem_fetch_add:",
    "lock xadd qword ptr [rdi], rsi",
    "mov rdx, rsi",
    "xor eax, eax",
    "ret",
    "softhca_usermem_swap:",
    "xchg qword ptr [rdi], rsi",
    "mov rdx, rsi",
    "xor eax, eax",
    "ret",
    "softhca_usermem_load:",
    "mov rdx, qword ptr [rdi]",
    "xor eax, eax",
    "ret",
    "softhca_usermem_atomic_end:",
    "softhca_usermem_atomic_fixup:",
    "ret",
    ".cfi_endproc",
    ".popsection",
);
