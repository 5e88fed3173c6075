//! A copy out of user memory that takes the bytes through an ICRC on its way ([`wire::icrc::Folding`]): each of them is in a register
//! already, so that the check costs nothing beside the copy, and nothing is read back that has just been written. Faults are answers, as they are
//! of [`super::copy()`].

use super::Fault;
use super::fault::{Outcome, Range};
use std::arch::global_asm;
use wire::icrc::Folding;

const _: () = assert!(Folding::STRIDE == 256 && Folding::SUMS == 0 && Folding::WEIGHTS == 256);

/// Copies `len` bytes, whole strides, from `src` to `dst`, and has them go through `folding`.
///
/// After an error any part of the destination may have been written, and `folding` is worth nothing.
///
/// # Errors
///
/// The first fault.
///
/// # Safety
///
/// As for [`super::copy()`].
#[inline]
pub unsafe fn copy_folding(dst: *mut u8, src: *const u8, len: usize, folding: &mut Folding) -> Result<(), Fault> {
    assert!(len > 0 && len.is_multiple_of(Folding::STRIDE), "{len} bytes are not whole strides");
    // SAFETY: the routine keeps to the C ABI and touches the two ranges, which the caller vouches for, and the 320 bytes of `folding`; the processor has
    // the instructions, or there would be no `Folding`.
    let outcome = unsafe { softhca_usermem_fold(dst, src, len, std::ptr::from_mut(folding).cast()) };
    if outcome.is_done() { Ok(()) } else { Err(outcome.fault_of_copy(src as u64, len as u64, dst as u64)) }
}

/// Where the routine lies, for the fault table.
pub(super) fn range() -> Range {
    Range {
        begin: &raw const softhca_usermem_fold_begin as u64,
        end: &raw const softhca_usermem_fold_end as u64,
        fixup: &raw const softhca_usermem_fold_fixup as u64,
    }
}

unsafe extern "C" {
    fn softhca_usermem_fold(dst: *mut u8, src: *const u8, len: usize, folding: *mut u8) -> Outcome;
    static softhca_usermem_fold_begin: u8;
    static softhca_usermem_fold_end: u8;
    static softhca_usermem_fold_fixup: u8;
}

// rdi = dst, rsi = src, rdx = len, rcx = folding; returns the Outcome in rax (0: done) and rdx. Changes r9 and zmm0 to zmm9.
global_asm!(
    ".pushsection .text.softhca_usermem_fold, \"ax\", @progbits",
    ".globl softhca_usermem_fold",
    ".hidden softhca_usermem_fold",
    ".type softhca_usermem_fold, @function",
    ".irp name, begin, end, fixup",
    ".globl softhca_usermem_fold_\\name",
    ".hidden softhca_usermem_fold_\\name",
    ".endr",
    ".cfi_startproc",
    ".p2align 6",
    "softhca_usermem_fold_begin:",
    "softhca_usermem_fold:",
    "xor eax, eax",
    "vmovdqa64 zmm0, [rcx]",
    "vmovdqa64 zmm1, [rcx + 64]",
    "vmovdqa64 zmm2, [rcx + 128]",
    "vmovdqa64 zmm3, [rcx + 192]",
    "vmovdqa64 zmm4, [rcx + 256]",
    "lea r9, [rdi + rdx]",
    "sub rsi, rdi",
    ".p2align 5",
    "30:",
    "prefetcht0 [rsi + rdi + 2048]", // what is not there is not fetched
    "prefetcht0 [rsi + rdi + 2112]",
    "prefetcht0 [rsi + rdi + 2176]",
    "prefetcht0 [rsi + rdi + 2240]",
    "vmovdqu64 zmm5, [rsi + rdi]",
    "vmovdqu64 zmm6, [rsi + rdi + 64]",
    "vmovdqu64 zmm7, [rsi + rdi + 128]",
    "vmovdqu64 zmm8, [rsi + rdi + 192]",
    "vpclmulqdq zmm9, zmm0, zmm4, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm4, 0x11",
    "vpternlogq zmm0, zmm9, zmm5, 0x96",
    "vpclmulqdq zmm9, zmm1, zmm4, 0x00",
    "vpclmulqdq zmm1, zmm1, zmm4, 0x11",
    "vpternlogq zmm1, zmm9, zmm6, 0x96",
    "vpclmulqdq zmm9, zmm2, zmm4, 0x00",
    "vpclmulqdq zmm2, zmm2, zmm4, 0x11",
    "vpternlogq zmm2, zmm9, zmm7, 0x96",
    "vpclmulqdq zmm9, zmm3, zmm4, 0x00",
    "vpclmulqdq zmm3, zmm3, zmm4, 0x11",
    "vpternlogq zmm3, zmm9, zmm8, 0x96",
    "vmovdqu64 [rdi], zmm5",
    "vmovdqu64 [rdi + 64], zmm6",
    "vmovdqu64 [rdi + 128], zmm7",
    "vmovdqu64 [rdi + 192], zmm8",
    "add rdi, 256",
    "cmp rdi, r9",
    "jb 30b",
    "vmovdqa64 [rcx], zmm0",
    "vmovdqa64 [rcx + 64], zmm1",
    "vmovdqa64 [rcx + 128], zmm2",
    "vmovdqa64 [rcx + 192], zmm3",
    "softhca_usermem_fold_end:",
    "softhca_usermem_fold_fixup:",
    "vzeroupper",
    "ret",
    ".cfi_endproc",
    ".popsection",
);
