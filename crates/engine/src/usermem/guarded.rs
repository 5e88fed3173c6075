//! Copies and atomics that take effect only while a word of shared memory holds a given number,
//! even if the thread is stopped meanwhile.
//!
//! It is not enough to read the word first: between the read and the store, the thread can be
//! stopped for any time. So both are one restartable sequence (rseq(2)). A thread that is preempted
//! in the sequence, or gets a signal, continues at the abort address. Each sequence ends with the
//! one store that counts: the atomic, or the store that writes the last byte of a copy. So an
//! aborted sequence has not made this store, and can be repeated. Bytes before the last one may be
//! written twice.
//!
//! As in `copy.rs`, a fault returns an error. The kernel goes to the abort address before it
//! delivers the signal, so that address is in the fault table, too.
//!
//! The C library registers each thread with the kernel. If it does not, there are no guarded
//! copies: see [`exists`]. Principal type: [`GuardWord`].

use std::arch::{asm, global_asm};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use super::outcome::{Outcome, Range};

/// The word to check, the number that it must hold, and the life word of its owner, who must be
/// alive.
#[derive(Clone, Copy)]
pub struct GuardWord<'a> {
    /// The word.
    pub word: &'a AtomicU32,
    /// The number.
    pub number: u32,
    /// The owner's life word: see [`shm::life`].
    pub life: &'a AtomicU32,
}

/// Why the operation was not done, or not completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The word holds another number, or its owner has ended.
    Revoked,
    /// The memory could not be accessed.
    Fault,
    /// The thread was interrupted again and again, or is not registered with the kernel.
    Interrupted,
}

/// Bytes of one piece of a copy; each piece has its own check of the word.
pub const PIECE: usize = 32 * 1024;
/// How often a piece is tried.
const TRIES: u32 = 64;

const _: () = assert!(shm::life::ENDED == 0x4000_0000, "the routines know it by heart");

/// Results of a routine besides done and faulted.
const REVOKED: u64 = 256;
const ABORTED: u64 = 512;

type GuardedRoutine = unsafe extern "C" fn(*mut u8, u64, u64, *const u32, u32, *mut Rseq, *const u32) -> Outcome;

/// `struct rseq` of `linux/rseq.h`, as far as it is used here.
#[repr(C)]
struct Rseq {
    cpu_id_start: u32,
    cpu_id: i32,
    sequence: u64,
}

/// Whether guarded copies work in the calling thread: the kernel and the C library support
/// restartable sequences.
#[must_use]
pub fn exists() -> bool {
    area().is_some()
}

/// The thread's rseq area, if the C library has registered one.
#[inline]
fn area() -> Option<*mut Rseq> {
    static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
    let offset = (*OFFSET.get_or_init(offset))?;
    let thread: *mut u8;
    // SAFETY: the first word of the thread's control block is its own address (x86-64 psABI,
    // thread-local storage).
    unsafe { asm!("mov {}, fs:0", out(reg) thread, options(nostack, preserves_flags, readonly, pure)) };
    let area = thread.wrapping_offset(offset).cast::<Rseq>();
    // SAFETY: glibc keeps the area of each thread at this offset for as long as the thread lives.
    let cpu = unsafe { (&raw const (*area).cpu_id).read_volatile() };
    // Negative: not registered.
    (cpu >= 0).then_some(area)
}

/// The offset of the area from the thread's control block, as glibc (2.35 and later) states it.
#[cold]
fn offset() -> Option<isize> {
    // SAFETY: the names are C strings.
    let find = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let (size, offset) = (find(c"__rseq_size"), find(c"__rseq_offset"));
    if size.is_null() || offset.is_null() {
        return None;
    }
    // SAFETY: `extern const unsigned int __rseq_size`.
    let size = unsafe { *size.cast::<u32>() };
    // SAFETY: `extern const ptrdiff_t __rseq_offset`.
    let offset = unsafe { *offset.cast::<isize>() };
    (size != 0).then_some(offset)
}

/// Runs a routine until it is not aborted, at most [`TRIES`] times.
#[inline]
fn run(guard: GuardWord<'_>, routine: GuardedRoutine, to: *mut u8, first: u64, second: u64) -> Result<u64, NotDone> {
    let area = area().ok_or(NotDone::Interrupted)?;
    for _ in 0..TRIES {
        // SAFETY: the routine keeps to the C ABI, touches only what its caller here was given by
        // its own, and the words; the area is the calling thread's.
        let outcome =
            unsafe { routine(to, first, second, guard.word.as_ptr(), guard.number, area, guard.life.as_ptr()) };
        // SAFETY: as above. No sequence may stay armed when another routine starts.
        unsafe { (&raw mut (*area).sequence).write_volatile(0) };
        if outcome.is_done() {
            return Ok(outcome.value);
        }
        match outcome.how() {
            REVOKED => return Err(NotDone::Revoked),
            ABORTED => {}
            _ => return Err(NotDone::Fault),
        }
    }
    Err(NotDone::Interrupted)
}

/// Copies `len` bytes piece by piece, each only if the guard word holds its number. Addresses rise
/// from piece to piece. The last byte of each piece is written once, by its last store.
///
/// # Errors
/// Why it ended; some of the bytes may have been written.
///
/// # Safety
/// As [`super::copy()`].
pub unsafe fn copy(guard: GuardWord<'_>, to: *mut u8, from: *const u8, len: usize) -> Result<(), NotDone> {
    let mut done = 0;
    while done < len {
        let part = (len - done).min(PIECE);
        let routine = match part {
            16.. => softhca_usermem_guarded_copy16,
            8.. => softhca_usermem_guarded_copy8,
            4.. => softhca_usermem_guarded_copy4,
            2.. => softhca_usermem_guarded_copy2,
            _ => softhca_usermem_guarded_copy1,
        };
        run(guard, routine, to.wrapping_add(done), from.wrapping_add(done) as u64, part as u64)?;
        done += part;
    }
    Ok(())
}

/// Adds to an aligned word; returns its old value.
///
/// # Errors
/// Why it was not done.
///
/// # Safety
/// As [`super::fetch_add`].
pub unsafe fn fetch_add(guard: GuardWord<'_>, word: *mut u64, addend: u64) -> Result<u64, NotDone> {
    run(guard, softhca_usermem_guarded_add, word.cast(), addend, 0)
}

/// Replaces the aligned word with `swap` if it holds `compare`; returns its old value.
///
/// # Errors
/// Why it was not done.
///
/// # Safety
/// As [`super::compare_swap`].
pub unsafe fn compare_swap(guard: GuardWord<'_>, word: *mut u64, compare: u64, swap: u64) -> Result<u64, NotDone> {
    run(guard, softhca_usermem_guarded_swap, word.cast(), compare, swap)
}

/// The addresses of the routines, including the abort address, for the fault table.
pub(super) fn range() -> Range {
    Range {
        begin: &raw const softhca_usermem_guarded_begin as u64,
        end: &raw const softhca_usermem_guarded_end as u64,
        fixup: &raw const softhca_usermem_guarded_fixup as u64,
    }
}

unsafe extern "C" {
    fn softhca_usermem_guarded_copy1(
        to: *mut u8,
        from: u64,
        len: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    fn softhca_usermem_guarded_copy2(
        to: *mut u8,
        from: u64,
        len: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    fn softhca_usermem_guarded_copy4(
        to: *mut u8,
        from: u64,
        len: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    fn softhca_usermem_guarded_copy8(
        to: *mut u8,
        from: u64,
        len: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    fn softhca_usermem_guarded_copy16(
        to: *mut u8,
        from: u64,
        len: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    fn softhca_usermem_guarded_add(
        to: *mut u8,
        addend: u64,
        unused: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    fn softhca_usermem_guarded_swap(
        to: *mut u8,
        compare: u64,
        swap: u64,
        look: *const u32,
        number: u32,
        area: *mut Rseq,
        life: *const u32,
    ) -> Outcome;
    static softhca_usermem_guarded_begin: u8;
    static softhca_usermem_guarded_end: u8;
    static softhca_usermem_guarded_fixup: u8;
}

// rdi = destination, rsi and rdx the operands, rcx = the word, r8d = its number, r9 = the thread's
// area, on the stack = the life word. A sequence lies between `guarded_arm` and `guarded_done`: the
// check of the word, and the stores; the last instruction is the one that counts.
global_asm!(
    ".macro guarded_arm name",
    ".globl softhca_usermem_guarded_\\name",
    ".hidden softhca_usermem_guarded_\\name",
    ".type softhca_usermem_guarded_\\name, @function",
    "lea r10, [rip + softhca_usermem_guarded_\\name\\()_sequence]",
    "mov [r9 + 8], r10",
    "softhca_usermem_guarded_\\name\\()_from:",
    "cmp dword ptr [rcx], r8d",
    "jne softhca_usermem_guarded_revoked",
    "mov r10, [rsp + 8]",
    "test dword ptr [r10], 0x40000000", // shm::life::ENDED
    "jne softhca_usermem_guarded_revoked",
    ".endm",
    ".macro guarded_done name",
    "softhca_usermem_guarded_\\name\\()_to:",
    ".pushsection .data.rel.ro.softhca_usermem_guarded, \"aw\", @progbits",
    ".p2align 5",
    "softhca_usermem_guarded_\\name\\()_sequence:",
    ".long 0, 0",
    ".quad softhca_usermem_guarded_\\name\\()_from",
    ".quad softhca_usermem_guarded_\\name\\()_to - softhca_usermem_guarded_\\name\\()_from",
    ".quad softhca_usermem_guarded_abort",
    ".popsection",
    ".endm",
    ".pushsection .text.softhca_usermem_guarded, \"ax\", @progbits",
    ".irp name, begin, end, fixup",
    ".globl softhca_usermem_guarded_\\name",
    ".hidden softhca_usermem_guarded_\\name",
    ".endr",
    ".p2align 6",
    ".cfi_startproc",
    "softhca_usermem_guarded_begin:",
    "softhca_usermem_guarded_copy1:",
    "movzx eax, byte ptr [rsi]",
    "guarded_arm copy1",
    "mov byte ptr [rdi], al",
    "guarded_done copy1",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_copy2:", // 2 and 3
    "movzx eax, word ptr [rsi]",
    "movzx r11d, word ptr [rsi + rdx - 2]",
    "guarded_arm copy2",
    "cmp rdx, 2",
    "je 1f",
    "mov word ptr [rdi], ax",
    "1:",
    "mov word ptr [rdi + rdx - 2], r11w",
    "guarded_done copy2",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_copy4:", // 4 to 7
    "mov eax, dword ptr [rsi]",
    "mov r11d, dword ptr [rsi + rdx - 4]",
    "guarded_arm copy4",
    "cmp rdx, 4",
    "je 1f",
    "mov dword ptr [rdi], eax",
    "1:",
    "mov dword ptr [rdi + rdx - 4], r11d",
    "guarded_done copy4",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_copy8:", // 8 to 15
    "mov rax, qword ptr [rsi]",
    "mov r11, qword ptr [rsi + rdx - 8]",
    "guarded_arm copy8",
    "cmp rdx, 8",
    "je 1f",
    "mov qword ptr [rdi], rax",
    "1:",
    "mov qword ptr [rdi + rdx - 8], r11",
    "guarded_done copy8",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_copy16:", // 16 and more
    "movups xmm1, [rsi + rdx - 16]",
    "lea r11, [rdx - 16]",
    "guarded_arm copy16",
    "xor eax, eax",
    "test r11, r11",
    "je 3f",
    "cmp r11, 2048",
    "jae 2f",
    "1:",
    "movups xmm0, [rsi + rax]",
    "movups [rdi + rax], xmm0",
    "add rax, 16",
    "cmp rax, r11",
    "jb 1b",
    "add rsi, r11",
    "add rdi, r11",
    "jmp 4f",
    "2:", // not if `copy::is_close_behind`
    "mov r10d, edi",
    "sub r10d, esi",
    "dec r10d",
    "and r10d, 4095",
    "cmp r10d, 63",
    "jb 1b",
    "mov rcx, r11",
    "rep movsb",
    // Another core may see the last store in halves if it crosses two lines. So this earlier store
    // writes all bytes of that store but the last one.
    "4:",
    "movups xmm0, [rsi - 1]",
    "movups [rdi - 1], xmm0",
    "3:",
    "movups [rdi], xmm1",
    "guarded_done copy16",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_add:",
    "guarded_arm add",
    "lock xadd qword ptr [rdi], rsi",
    "guarded_done add",
    "mov rdx, rsi",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_swap:",
    "mov rax, rsi",
    "guarded_arm swap",
    "lock cmpxchg qword ptr [rdi], rdx",
    "guarded_done swap",
    "mov rdx, rax",
    "xor eax, eax",
    "ret",
    "softhca_usermem_guarded_revoked:",
    "mov eax, 256",
    "ret",
    // The signature that glibc has registered, inside an instruction that is never executed.
    ".byte 0x0f, 0xb9, 0x3d",
    ".long 0x53053053",
    "softhca_usermem_guarded_abort:",
    "mov eax, 512",
    "softhca_usermem_guarded_end:",
    "softhca_usermem_guarded_fixup:",
    "ret",
    ".cfi_endproc",
    ".popsection",
    ".purgem guarded_arm",
    ".purgem guarded_done",
);
