//! The copy routines for user memory: as fast as `memcpy`, and a fault returns an error instead of
//! a signal.
//!
//! The routines are assembler, because their instructions must lie between known labels. The
//! handler in `fault.rs` recognises the instructions by address and makes the routine return the
//! fault. The routines are leaf functions and do not use the stack, so the exit path only has to
//! return.
//!
//! A peer may spin on the destination, so the order of the stores is part of the contract, as it is
//! on hardware: addresses rise, and **the last byte is written once, by the last store**. 1, 2, 4,
//! 8 and 16 bytes are one store. Earlier bytes may be written twice, with the same value. Another
//! thread may see a store across two cache lines in halves. So above 128 bytes, only whole lines
//! come before the last piece, which lies in one line; up to 128 bytes this holds for destinations
//! that begin with a line. `rep movsb` promises no order among its own stores (Intel SDM volume 1,
//! 7.3.9.3), so ordinary stores follow it.
//!
//! [`stage`] promises no order. It is for bytes that another party reads only after a later store
//! has published them, as in a lane. There `rep movsb` copies all lines. Ordinary stores to the
//! first and the last line would wait for lines that the reader has in its cache.

use std::arch::global_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::atomic::{AtomicU8, Ordering};

use super::outcome::{Fault, Outcome, Range};

/// Copies `len` bytes from `src` to `dst`. Either range may turn out not to be accessible.
///
/// After an error, any part of the destination may have been written. The result for overlapping
/// ranges is undefined, but nothing outside the destination is written. Requires that
/// [`super::install`] was called, and that the thread does not block SIGSEGV and SIGBUS
/// ([`super::prepare_thread`]).
///
/// # Errors
///
/// The first fault: which side, which address, and which kind.
///
/// # Safety
///
/// The ranges need not be mapped, but what is mapped there must be memory that was handed over for
/// this purpose: no Rust reference to any byte of the destination may be alive, and none that
/// forbids reading to the source.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    let routine = if len <= SMALL { softhca_usermem_copy_small } else { routine_for(dst, src, len) };
    // SAFETY: the caller vouches for the ranges, and the routine was chosen for the length.
    unsafe { run(routine, dst, src, len) }
}

/// Copies like [`copy`], to memory of the engine that no other party reads before a later store
/// publishes the bytes. The order of the stores is undefined.
///
/// # Errors
///
/// As for [`copy`].
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub unsafe fn stage(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    if len < REPEAT_FROM || PROCESSOR.load(Ordering::Relaxed) & REPEAT == 0 || is_close_behind(dst, src) {
        // SAFETY: as the caller vouches.
        return unsafe { copy(dst, src, len) };
    }
    // SAFETY: the caller vouches for the ranges, and the routine takes any length.
    unsafe { run(softhca_usermem_copy_whole, dst, src, len) }
}

/// Runs a routine.
///
/// # Safety
///
/// As for [`copy`]; the routine can copy `len` bytes on this processor.
#[inline]
unsafe fn run(routine: CopyRoutine, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: each routine keeps to the C ABI and touches only the two ranges, which the caller
    // vouches for; a fault in them makes it return. The length is one that it was chosen for.
    let outcome = unsafe { routine(dst, src, len) };
    if outcome.is_done() { Ok(()) } else { Err(outcome.fault_of_copy(src as u64, len as u64, dst as u64)) }
}

/// Up to this length, all loads come before the first store, and there is no loop.
const SMALL: usize = 128;
/// From this length on, `rep movsb` is faster than the loops. It is much faster when another core
/// has just read the destination, because it takes over cache lines without reading them. For
/// shorter copies its startup costs more than that (measured).
const REPEAT_FROM: usize = 4096;

type CopyRoutine = unsafe extern "C" fn(*mut u8, *const u8, usize) -> Outcome;

/// Whether the destination is close behind the source, modulo 4096. On a third-generation EPYC,
/// `rep movsb` copies 3 GB/s at distances of 1, 8 and 16 bytes, and 43 to 48 from 32 bytes on, as
/// the loops do at all distances. The bound has a margin for other processors. This is common: a
/// page in a lane is copied to memory of `malloc`, which gives large blocks 16 bytes behind a page.
#[inline]
pub(super) fn is_close_behind(dst: *const u8, src: *const u8) -> bool {
    dst.addr().wrapping_sub(src.addr()).wrapping_sub(1) % 4096 < 63
}

/// The routine for a length above [`SMALL`].
#[inline]
fn routine_for(dst: *const u8, src: *const u8, len: usize) -> CopyRoutine {
    let processor = PROCESSOR.load(Ordering::Relaxed);
    if len >= REPEAT_FROM && processor & REPEAT != 0 && !is_close_behind(dst, src) {
        softhca_usermem_copy_repeat
    } else if processor & AVX != 0 {
        softhca_usermem_copy_avx
    } else {
        softhca_usermem_copy_sse
    }
}

/// The processor's features; before [`choose`] has run, those that every x86-64 processor has.
static PROCESSOR: AtomicU8 = AtomicU8::new(0);
/// [`choose`] has run.
const LOOKED: u8 = 1;
/// AVX, and the operating system saves its registers.
const AVX: u8 = 2;
/// `rep movsb` is a fast way to copy (ERMS, CPUID leaf 7, EBX bit 9).
const REPEAT: u8 = 4;

/// Chooses the routines for this processor; called when the fault handler is installed.
pub(super) fn choose() {
    if PROCESSOR.load(Ordering::Relaxed) != 0 {
        return;
    }
    let mut processor = LOOKED;
    if std::arch::is_x86_feature_detected!("avx") {
        processor |= AVX;
    }
    if has_fast_repeat() {
        processor |= REPEAT;
    }
    PROCESSOR.store(processor, Ordering::Relaxed);
}

#[allow(unused_unsafe, reason = "CPUID became safe to call after the oldest Rust that this is built with")]
fn has_fast_repeat() -> bool {
    // SAFETY: every x86-64 processor has the instruction.
    let highest_leaf = unsafe { __cpuid(0) }.eax;
    // SAFETY: as above.
    highest_leaf >= 7 && unsafe { __cpuid_count(7, 0) }.ebx & (1 << 9) != 0
}

/// Copies with each routine that can copy `len` bytes on this processor, not only the one that
/// [`copy`] would use.
///
/// # Safety
///
/// As for [`copy`].
#[cfg(test)]
pub(super) unsafe fn copy_with_each(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    mut check: impl FnMut(&'static str, Result<(), Fault>),
) {
    let mut routines: Vec<(&'static str, CopyRoutine)> = Vec::new();
    if len <= SMALL {
        routines.push(("small", softhca_usermem_copy_small));
    } else {
        routines.extend([("sse", softhca_usermem_copy_sse as CopyRoutine), ("repeat", softhca_usermem_copy_repeat)]);
        routines.push(("whole", softhca_usermem_copy_whole));
        if PROCESSOR.load(Ordering::Relaxed) & AVX != 0 {
            routines.push(("avx", softhca_usermem_copy_avx));
        }
    }
    for (name, routine) in routines {
        // SAFETY: as in `copy`.
        let outcome = unsafe { routine(dst, src, len) };
        let fault = || outcome.fault_of_copy(src as u64, len as u64, dst as u64);
        check(name, if outcome.is_done() { Ok(()) } else { Err(fault()) });
    }
}

/// The addresses of the routines, for the fault table.
pub(super) fn ranges() -> [Range; 2] {
    [
        Range {
            begin: &raw const softhca_usermem_copy_begin as u64,
            end: &raw const softhca_usermem_copy_end as u64,
            fixup: &raw const softhca_usermem_copy_fixup as u64,
        },
        Range {
            begin: &raw const softhca_usermem_copy_avx_begin as u64,
            end: &raw const softhca_usermem_copy_avx_end as u64,
            fixup: &raw const softhca_usermem_copy_avx_fixup as u64,
        },
    ]
}

unsafe extern "C" {
    fn softhca_usermem_copy_small(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    fn softhca_usermem_copy_sse(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    fn softhca_usermem_copy_avx(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    fn softhca_usermem_copy_repeat(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    fn softhca_usermem_copy_whole(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    static softhca_usermem_copy_begin: u8;
    static softhca_usermem_copy_end: u8;
    static softhca_usermem_copy_fixup: u8;
    static softhca_usermem_copy_avx_begin: u8;
    static softhca_usermem_copy_avx_end: u8;
    static softhca_usermem_copy_avx_fixup: u8;
}

// All: rdi = dst, rsi = src, rdx = len; returns the Outcome in rax (0: done) and rdx. Changes rcx,
// r8, r9, xmm0 to xmm7.
global_asm!(
    ".pushsection .text.softhca_usermem_copy, \"ax\", @progbits",
    ".irp name, begin, end, fixup, small, sse, repeat, whole",
    ".globl softhca_usermem_copy_\\name",
    ".hidden softhca_usermem_copy_\\name",
    ".type softhca_usermem_copy_\\name, @function",
    ".endr",
    ".cfi_startproc",
    ".p2align 6",
    "softhca_usermem_copy_begin:",
    // At most 128 bytes. For a length between two sizes, two overlapping pieces are copied, one
    // from each end.
    "softhca_usermem_copy_small:",
    "xor eax, eax",
    "cmp rdx, 16",
    "ja 20f",
    "je 16f",
    "cmp edx, 8",
    "je 8f",
    "ja 9f",
    "cmp edx, 4",
    "je 4f",
    "ja 5f",
    "cmp edx, 2",
    "je 2f",
    "ja 3f",
    "test edx, edx",
    "je 12f",
    "movzx ecx, byte ptr [rsi]",
    "mov byte ptr [rdi], cl",
    "12:",
    "ret",
    "2:",
    "movzx ecx, word ptr [rsi]",
    "mov word ptr [rdi], cx",
    "ret",
    "3:",
    "movzx ecx, word ptr [rsi]",
    "movzx r8d, byte ptr [rsi + 2]",
    "mov word ptr [rdi], cx",
    "mov byte ptr [rdi + 2], r8b",
    "ret",
    "4:",
    "mov ecx, dword ptr [rsi]",
    "mov dword ptr [rdi], ecx",
    "ret",
    "5:", // 5 to 7
    "mov ecx, dword ptr [rsi]",
    "mov r8d, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], ecx",
    "mov dword ptr [rdi + rdx - 4], r8d",
    "ret",
    "8:",
    "mov rcx, qword ptr [rsi]",
    "mov qword ptr [rdi], rcx",
    "ret",
    "9:", // 9 to 15
    "mov rcx, qword ptr [rsi]",
    "mov r8, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rcx",
    "mov qword ptr [rdi + rdx - 8], r8",
    "ret",
    "16:",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "ret",
    "20:",
    "cmp rdx, 32",
    "ja 21f",
    "movups xmm0, [rsi]", // 17 to 32
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    "21:",
    "cmp rdx, 64",
    "ja 22f",
    "movups xmm0, [rsi]", // 33 to 64
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "ret",
    "22:", // 65 to 128
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "movups [rdi + rdx - 64], xmm4",
    "movups [rdi + rdx - 48], xmm5",
    "movups [rdi + rdx - 32], xmm6",
    "movups [rdi + rdx - 16], xmm7",
    "ret",
    // More than 128 bytes: the first 64, whole lines of the destination, the last 64. From here on
    // rdi is the place in the destination, rsi the distance to the source, r9 the start of the last
    // 64 bytes of the destination.
    ".p2align 5",
    "softhca_usermem_copy_sse:",
    "xor eax, eax",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "lea r9, [rdi + rdx - 64]",
    "sub rsi, rdi",
    "add rdi, 64",
    "and rdi, -64",
    ".p2align 5",
    "30:",
    "movups xmm0, [rsi + rdi]",
    "movups xmm1, [rsi + rdi + 16]",
    "movups xmm2, [rsi + rdi + 32]",
    "movups xmm3, [rsi + rdi + 48]",
    "movaps [rdi], xmm0",
    "movaps [rdi + 16], xmm1",
    "movaps [rdi + 32], xmm2",
    "movaps [rdi + 48], xmm3",
    "add rdi, 64",
    "cmp rdi, r9",
    "jb 30b",
    "movups xmm0, [rsi + r9]",
    "movups xmm1, [rsi + r9 + 16]",
    "movups xmm2, [rsi + r9 + 32]",
    "movups xmm3, [rsi + r9 + 48]",
    "movups [r9], xmm0",
    "movups [r9 + 16], xmm1",
    "movups [r9 + 32], xmm2",
    "movups [r9 + 48], xmm3",
    "ret",
    // As above, with r8 as the distance, because rsi moves.
    ".p2align 5",
    "softhca_usermem_copy_repeat:",
    "xor eax, eax",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "lea r9, [rdi + rdx - 64]",
    "mov r8, rsi",
    "sub r8, rdi",
    "add rdi, 64",
    "and rdi, -64",
    "lea rsi, [r8 + rdi]",
    "lea rcx, [r9 + 63]",
    "sub rcx, rdi",
    "and rcx, -64",
    "rep movsb",
    "movups xmm0, [r8 + r9]",
    "movups xmm1, [r8 + r9 + 16]",
    "movups xmm2, [r8 + r9 + 32]",
    "movups xmm3, [r8 + r9 + 48]",
    "movups [r9], xmm0",
    "movups [r9 + 16], xmm1",
    "movups [r9 + 32], xmm2",
    "movups [r9 + 48], xmm3",
    "ret",
    // In no defined order.
    ".p2align 5",
    "softhca_usermem_copy_whole:",
    "xor eax, eax",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    "softhca_usermem_copy_end:",
    "softhca_usermem_copy_fixup:",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

// As the SSE routine, with AVX and two lines at a time. The exit path must clear the upper halves
// of the registers.
global_asm!(
    ".pushsection .text.softhca_usermem_copy_avx, \"ax\", @progbits",
    ".irp name, avx, avx_begin, avx_end, avx_fixup",
    ".globl softhca_usermem_copy_\\name",
    ".hidden softhca_usermem_copy_\\name",
    ".type softhca_usermem_copy_\\name, @function",
    ".endr",
    ".cfi_startproc",
    ".p2align 6",
    "softhca_usermem_copy_avx_begin:",
    "softhca_usermem_copy_avx:",
    "xor eax, eax",
    "vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm1",
    "lea r9, [rdi + rdx - 64]",
    "lea r8, [rdi + rdx - 128]",
    "sub rsi, rdi",
    "add rdi, 64",
    "and rdi, -64",
    "cmp rdi, r8",
    "jae 31f",
    ".p2align 5",
    "30:",
    "vmovups ymm0, [rsi + rdi]",
    "vmovups ymm1, [rsi + rdi + 32]",
    "vmovups ymm2, [rsi + rdi + 64]",
    "vmovups ymm3, [rsi + rdi + 96]",
    "vmovaps [rdi], ymm0",
    "vmovaps [rdi + 32], ymm1",
    "vmovaps [rdi + 64], ymm2",
    "vmovaps [rdi + 96], ymm3",
    "add rdi, 128",
    "cmp rdi, r8",
    "jb 30b",
    "31:",
    "cmp rdi, r9",
    "jae 32f",
    "vmovups ymm0, [rsi + rdi]",
    "vmovups ymm1, [rsi + rdi + 32]",
    "vmovaps [rdi], ymm0",
    "vmovaps [rdi + 32], ymm1",
    "32:",
    "vmovups ymm0, [rsi + r9]",
    "vmovups ymm1, [rsi + r9 + 32]",
    "vmovups [r9], ymm0",
    "vmovups [r9 + 32], ymm1",
    "softhca_usermem_copy_avx_end:",
    "softhca_usermem_copy_avx_fixup:",
    "vzeroupper",
    "ret",
    ".cfi_endproc",
    ".popsection",
);
