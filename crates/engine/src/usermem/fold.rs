//! A copy out of user memory that also folds the bytes into an ICRC ([`wire::icrc::Folding`]). Each
//! byte is in a register already, so the check costs nothing beside the copy, and the packet need
//! not be read again. A fault returns an error, as in [`super::copy()`]. Principal function:
//! [`copy_folding`].

use std::arch::global_asm;

use wire::icrc::{Folding, Width};

use super::outcome::{Fault, Outcome, Range};

const _: () = assert!(Folding::STRIDE == 256 && Folding::SUMS == 0 && Folding::WEIGHTS == 256 && Folding::LAST == 320);

/// Copies `len` bytes, whole strides, from `src` to `dst`, and folds them into `folding`.
///
/// After an error, any part of the destination may have been written, and `folding` is invalid.
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
    let routine = match folding.width() {
        Width::Half => softhca_usermem_fold_half,
        Width::Whole => softhca_usermem_fold,
    };
    // SAFETY: the routines keep to the C ABI and touch the two ranges, which the caller vouches
    // for, and the 336 bytes of `folding`; the processor has the instructions, or there would be no
    // such `Folding`.
    let outcome = unsafe { routine(dst, src, len, std::ptr::from_mut(folding).cast()) };
    if outcome.is_done() { Ok(()) } else { Err(outcome.fault_of_copy(src as u64, len as u64, dst as u64)) }
}

/// The addresses of the routines, for the fault table.
pub(super) fn ranges() -> [Range; 2] {
    [
        Range {
            begin: &raw const softhca_usermem_fold_begin as u64,
            end: &raw const softhca_usermem_fold_end as u64,
            fixup: &raw const softhca_usermem_fold_fixup as u64,
        },
        Range {
            begin: &raw const softhca_usermem_fold_half_begin as u64,
            end: &raw const softhca_usermem_fold_half_end as u64,
            fixup: &raw const softhca_usermem_fold_half_fixup as u64,
        },
    ]
}

unsafe extern "C" {
    fn softhca_usermem_fold(dst: *mut u8, src: *const u8, len: usize, folding: *mut u8) -> Outcome;
    static softhca_usermem_fold_begin: u8;
    static softhca_usermem_fold_end: u8;
    static softhca_usermem_fold_fixup: u8;
    fn softhca_usermem_fold_half(dst: *mut u8, src: *const u8, len: usize, folding: *mut u8) -> Outcome;
    static softhca_usermem_fold_half_begin: u8;
    static softhca_usermem_fold_half_end: u8;
    static softhca_usermem_fold_half_fixup: u8;
}

// rdi = dst, rsi = src, rdx = len, rcx = folding; returns the Outcome in rax (0: done) and rdx.
// Changes r9 and zmm0 to zmm9.
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
    ".irp sum, 0, 1, 2, 3",
    "vpxord zmm\\sum, zmm\\sum, zmm\\sum",
    ".endr",
    "vinserti32x4 zmm3, zmm3, [rcx + 320], 3",
    "vmovdqa64 zmm4, [rcx + 256]",
    "lea r9, [rdi + rdx]",
    "sub rsi, rdi",
    ".p2align 5",
    "30:",
    "prefetcht0 [rsi + rdi + 2048]", // a prefetch of an unmapped address does nothing
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

// As above, in registers of half the width; four of them hold half a stride. Changes r9 and ymm0 to
// ymm7.
global_asm!(
    ".pushsection .text.softhca_usermem_fold_half, \"ax\", @progbits",
    ".globl softhca_usermem_fold_half",
    ".hidden softhca_usermem_fold_half",
    ".type softhca_usermem_fold_half, @function",
    ".irp name, begin, end, fixup",
    ".globl softhca_usermem_fold_half_\\name",
    ".hidden softhca_usermem_fold_half_\\name",
    ".endr",
    ".cfi_startproc",
    ".p2align 6",
    "softhca_usermem_fold_half_begin:",
    "softhca_usermem_fold_half:",
    "xor eax, eax",
    ".irp sum, 0, 1, 2, 3",
    "vpxor ymm\\sum, ymm\\sum, ymm\\sum",
    ".endr",
    "vinserti128 ymm3, ymm3, [rcx + 320], 1",
    "vmovdqa ymm4, [rcx + 256]",
    "lea r9, [rdi + rdx]",
    "sub rsi, rdi",
    ".p2align 5",
    "30:",
    "prefetcht0 [rsi + rdi + 2048]", // a prefetch of an unmapped address does nothing
    "prefetcht0 [rsi + rdi + 2112]",
    "prefetcht0 [rsi + rdi + 2176]",
    "prefetcht0 [rsi + rdi + 2240]",
    ".irp half, 0, 128",
    ".irp sum, 0, 1, 2, 3",
    "vmovdqu ymm5, [rsi + rdi + 32 * \\sum + \\half]",
    "vpclmulqdq ymm6, ymm\\sum, ymm4, 0x00",
    "vpclmulqdq ymm7, ymm\\sum, ymm4, 0x11",
    "vmovdqu [rdi + 32 * \\sum + \\half], ymm5",
    "vpxor ymm6, ymm6, ymm5",
    "vpxor ymm\\sum, ymm6, ymm7",
    ".endr",
    ".endr",
    "add rdi, 256",
    "cmp rdi, r9",
    "jb 30b",
    ".irp sum, 0, 1, 2, 3",
    "vmovdqa [rcx + 32 * \\sum], ymm\\sum",
    ".endr",
    "softhca_usermem_fold_half_end:",
    "softhca_usermem_fold_half_fixup:",
    "vzeroupper",
    "ret",
    ".cfi_endproc",
    ".popsection",
);
