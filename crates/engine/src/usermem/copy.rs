//! The one copy routine for user memory: as fast as `memcpy`, and a fault in it is a value, not a signal.
//!
//! The routine is assembler, because its instructions must lie between two known labels: the handler in `fault.rs`
//! recognises them by address and makes the routine return the fault. It is a leaf and leaves the stack alone, so that
//! returning is all that the way out has to do. It is not `memmove`: what overlapping ranges end up with is undefined
//! (but nothing outside the destination is written).
//!
//! A peer may spin on the memory that is being written, so the order of the stores is part of the contract, as on
//! hardware: addresses rise, **the last byte is stored once and last**, 1, 2, 4, 8 and 16 bytes are one store, and no
//! aligned 8-byte word of a transfer of whole aligned words is ever seen half written at its end. Ranges of bytes before
//! the last store may be written twice with the same value. `rep movsb` gives no order among its own stores
//! (Intel SDM volume 3, 9.2.4, "fast-string operation"), which is why the last 64 bytes are always ordinary stores.

use super::fault::{Outcome, Range};
use super::Fault;
use std::arch::global_asm;

/// Copies `len` bytes from `src` to `dst`, either of which may turn out not to be there.
///
/// After an error any part of the destination may have been written. Wants [`super::install`] to have been called; see
/// there for what a thread must not block.
///
/// # Errors
///
/// The first fault: which side, where, and of which kind.
///
/// # Safety
///
/// The ranges need not be mapped, but what is mapped there must be memory that the program handed over for this purpose:
/// no Rust reference to any byte of the destination may be alive, and none that forbids reading to the source.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the routine keeps to the C ABI and touches only the two ranges, which the caller vouches for; a fault in
    // them makes it return.
    let outcome = unsafe { softhca_usermem_copy(dst, src, len) };
    if outcome.is_done() {
        return Ok(());
    }
    Err(outcome.fault_of_copy(src as u64, len as u64, dst as u64))
}

/// Where the routine lies, for the fault table.
pub(super) fn range() -> Range {
    Range {
        begin: &raw const softhca_usermem_copy_begin as u64,
        end: &raw const softhca_usermem_copy_end as u64,
        fixup: &raw const softhca_usermem_copy_fixup as u64,
    }
}

unsafe extern "C" {
    fn softhca_usermem_copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome;
    static softhca_usermem_copy_begin: u8;
    static softhca_usermem_copy_end: u8;
    static softhca_usermem_copy_fixup: u8;
}

// rdi = dst, rsi = src, rdx = len; returns the Outcome in rax:rdx (rax 0: done). Clobbers rcx, r8, xmm0–xmm7.
//
// Up to 128 bytes every load comes before the first store, and a length between two sizes is covered by two runs that
// overlap, one from each end. Longer copies …
global_asm!(
    ".pushsection .text.softhca_usermem_copy, \"ax\", @progbits",
    ".globl softhca_usermem_copy",
    ".hidden softhca_usermem_copy",
    ".type softhca_usermem_copy, @function",
    ".irp name, begin, end, fixup",
    ".globl softhca_usermem_copy_\\name",
    ".hidden softhca_usermem_copy_\\name",
    ".endr",
    ".p2align 6",
    "softhca_usermem_copy_begin:",
    "softhca_usermem_copy:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "ja 20f",
    "je 16f",
    "xor eax, eax",
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
    "je 13f",
    "movzx ecx, byte ptr [rsi]",
    "mov byte ptr [rdi], cl",
    "13:",
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
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmmword ptr [rdi], xmm0",
    "xor eax, eax",
    "ret",
    "20:", // 17 to 32
    "cmp rdx, 32",
    "ja 21f",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + rdx - 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    "21:", // 33 to 64
    "cmp rdx, 64",
    "ja 22f",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + 16]",
    "movups xmm2, xmmword ptr [rsi + rdx - 32]",
    "movups xmm3, xmmword ptr [rsi + rdx - 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + 16], xmm1",
    "movups xmmword ptr [rdi + rdx - 32], xmm2",
    "movups xmmword ptr [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    "22:", // 65 to 128
    "cmp rdx, 128",
    "ja 23f",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + 16]",
    "movups xmm2, xmmword ptr [rsi + 32]",
    "movups xmm3, xmmword ptr [rsi + 48]",
    "movups xmm4, xmmword ptr [rsi + rdx - 64]",
    "movups xmm5, xmmword ptr [rsi + rdx - 48]",
    "movups xmm6, xmmword ptr [rsi + rdx - 32]",
    "movups xmm7, xmmword ptr [rsi + rdx - 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + 16], xmm1",
    "movups xmmword ptr [rdi + 32], xmm2",
    "movups xmmword ptr [rdi + 48], xmm3",
    "movups xmmword ptr [rdi + rdx - 64], xmm4",
    "movups xmmword ptr [rdi + rdx - 48], xmm5",
    "movups xmmword ptr [rdi + rdx - 32], xmm6",
    "movups xmmword ptr [rdi + rdx - 16], xmm7",
    "xor eax, eax",
    "ret",
    "23:",
    "lea rcx, [rdx - 64]",
    "rep movsb",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + 16]",
    "movups xmm2, xmmword ptr [rsi + 32]",
    "movups xmm3, xmmword ptr [rsi + 48]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + 16], xmm1",
    "movups xmmword ptr [rdi + 32], xmm2",
    "movups xmmword ptr [rdi + 48], xmm3",
    "xor eax, eax",
    "ret",
    "softhca_usermem_copy_end:",
    "softhca_usermem_copy_fixup:",
    "ret",
    ".cfi_endproc",
    ".size softhca_usermem_copy, . - softhca_usermem_copy",
    ".popsection",
);
