//! Faults as values: the table of instructions that may fault, and the SIGSEGV and SIGBUS handler that looks it up.
//!
//! When a fault's instruction lies in the table, the handler writes what happened into the registers that carry the
//! routine's result and lets it go on at its way out. Every other fault, and every such signal that somebody sent, is
//! passed on to the handler that was there before (`previous.rs`), as if ours did not exist. Principal type: [`Fault`].

use super::{atomic, copy, fold, guarded, previous};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;

/// A touch of user memory that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What was being done to the memory.
    pub side: Side,
    /// The signal that it would have been.
    pub signal: FaultSignal,
    /// The address that could not be touched, where the processor names it; for an address that no mapping can have
    /// (not canonical) the start of the range.
    pub address: u64,
}

/// Which half of an operation met the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source of a copy, or the word that a load reads.
    Read,
    /// The destination of a copy, or the word that an atomic operation changes.
    Write,
}

/// The signal that a fault would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSignal {
    /// SIGSEGV: nothing is mapped there, or the mapping forbids it.
    Segv,
    /// SIGBUS: mapped, but there is nothing behind it (a truncated file, a memory error).
    Bus,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match self.side {
            Side::Read => "reading",
            Side::Write => "writing",
        };
        let why = match self.signal {
            FaultSignal::Segv => "it is not mapped or its protection forbids it",
            FaultSignal::Bus => "the file behind the mapping is too short, or the memory is broken",
        };
        write!(f, "{doing} {:#x} failed: {why}", self.address)
    }
}

impl std::error::Error for Fault {}

/// Makes sure that the fault handler is the process's handler for SIGSEGV and SIGBUS.
///
/// To be called before the first copy and again at each registration of memory: a program may put a handler of its own on
/// top at any time, and then ours goes on top of that one and passes on to it what is not ours. When nothing has changed
/// this is two short system calls and takes no lock.
///
/// While a program's handler is on top that does not pass faults on, faults in user memory are that program's. A shared
/// library that calls this must stay loaded (link it with `-z nodelete`), as the handler does.
///
/// # Errors
///
/// What `sigaction` answers; the kernel does not refuse these two signals, a sandbox might.
pub fn install() -> io::Result<()> {
    copy::choose();
    previous::install(libc::SIGSEGV)?;
    previous::install(libc::SIGBUS)
}

/// Unblocks SIGSEGV and SIGBUS in the calling thread, once per thread.
///
/// The kernel ends the process when a thread faults that has the signal blocked, handler or not. Programs that leave
/// signals to one thread often block all of them in the others, so every engine call that copies begins with this: after
/// the first time it reads one thread-local flag.
#[inline]
pub fn prepare_thread() {
    thread_local!(static PREPARED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    PREPARED.with(|prepared| {
        if !prepared.replace(true) {
            unblock();
        }
    });
}

#[cold]
fn unblock() {
    change_mask(libc::SIG_UNBLOCK, &fault_signals());
}

/// Blocks every signal but SIGSEGV and SIGBUS in the calling thread: what the engine's own threads begin with, so that the
/// program's signals are never handled on them. The two stay open because a copy that faults with its signal blocked would
/// end the process.
pub fn block_other_signals() {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set that it is given.
    unsafe { libc::sigfillset(mask.as_mut_ptr()) };
    // SAFETY: initialised by the line before.
    let mut mask = unsafe { mask.assume_init() };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the set is initialised and the signal number is one that exists.
        unsafe { libc::sigdelset(&mut mask, signal) };
    }
    change_mask(libc::SIG_SETMASK, &mask);
}

fn fault_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set that it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line before.
    let mut set = unsafe { set.assume_init() };
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the set is initialised and the signal number is one that exists.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: the set is initialised and the old mask is not asked for. It fails only for an unknown `how`.
    unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
}

/// Instructions of which a fault is an answer.
#[derive(Clone, Copy)]
pub(super) struct Range {
    /// The first instruction.
    pub(super) begin: u64,
    /// Behind the last instruction.
    pub(super) end: u64,
    /// Where to go on after a fault: it returns with rax and rdx as they are.
    pub(super) fixup: u64,
}

/// What a routine of the table returns, in rax and rdx (System V ABI: a struct of two words).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    /// 0, or how it failed: [`FAULTED`] and what the handler adds.
    how: u64,
    /// The value, or the faulting address.
    pub(super) value: u64,
}

const FAULTED: u64 = 1;
/// The signal was SIGBUS.
const BUS: u64 = 2;
/// The processor's page-fault error code is known.
const PAGE_FAULT: u64 = 4;
/// It said that the access was a write.
const WRITE: u64 = 8;

impl Outcome {
    #[inline]
    pub(super) fn is_done(self) -> bool {
        self.how == 0
    }

    /// How it went; not 0 for what is not a fault, and has its own numbers from 256 on.
    #[inline]
    pub(super) fn how(self) -> u64 {
        self.how
    }

    /// The fault that this is, in a load of the word at `address`.
    #[cold]
    pub(super) fn fault_of_load(self, address: u64) -> Fault {
        Fault { side: Side::Read, signal: self.signal(), address }
    }

    /// The fault that this is, in an atomic operation on the word at `address`.
    #[cold]
    pub(super) fn fault_of_update(self, address: u64) -> Fault {
        Fault { side: Side::Write, signal: self.signal(), address }
    }

    fn signal(self) -> FaultSignal {
        if self.how & BUS != 0 { FaultSignal::Bus } else { FaultSignal::Segv }
    }

    /// The fault that this is, in a copy that read `len` bytes at `src` and wrote as many at `dst`.
    #[cold]
    pub(super) fn fault_of_copy(self, src: u64, len: u64, dst: u64) -> Fault {
        let signal = self.signal();
        if self.how & PAGE_FAULT != 0 {
            let side = if self.how & WRITE != 0 { Side::Write } else { Side::Read };
            return Fault { side, signal, address: self.value };
        }
        // No address (a general-protection fault: one of the ranges leaves the canonical half) or an address rounded to a
        // page (a memory error).
        let holds = |start: u64| self.value >= start & !0xfff && self.value < start.saturating_add(len);
        let leaves = |start: u64| start.saturating_add(len) > CANONICAL;
        let side = if holds(src) || (!holds(dst) && leaves(src)) { Side::Read } else { Side::Write };
        let start = if side == Side::Read { src } else { dst };
        Fault { side, signal, address: if holds(start) { self.value } else { start } }
    }
}

/// The end of the lower half of the address space, where all user memory lies unless the program asks for more.
const CANONICAL: u64 = 1 << 47;

/// If `context` was interrupted in an instruction of the table, makes it go on at the way out with the fault as its result.
///
/// # Safety
///
/// `info` and `context` must be what the kernel passed to the handler of `signal`.
pub(super) unsafe fn resolve(
    signal: libc::c_int,
    info: *const libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> bool {
    // SAFETY: the kernel passes a valid siginfo, and nobody changes it.
    let info = unsafe { &*info };
    if !is_fault(signal, info.si_code) {
        return false;
    }
    // SAFETY: the kernel passes a valid context, and nobody else uses it while the handler runs.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let rip = registers[libc::REG_RIP as usize].cast_unsigned();
    let Some(range) = table().into_iter().find(|range| (range.begin..range.end).contains(&rip)) else {
        return false;
    };
    let mut how = FAULTED;
    if signal == libc::SIGBUS {
        how |= BUS;
    }
    if registers[libc::REG_TRAPNO as usize] == PAGE_FAULT_TRAP {
        how |= PAGE_FAULT;
        if registers[libc::REG_ERR as usize] & PAGE_FAULT_WRITE != 0 {
            how |= WRITE;
        }
    }
    // SAFETY: a fault's siginfo carries an address.
    let address = unsafe { info.si_addr() } as u64;
    registers[libc::REG_RAX as usize] = how.cast_signed();
    registers[libc::REG_RDX as usize] = address.cast_signed();
    registers[libc::REG_RIP as usize] = range.fixup.cast_signed();
    true
}

/// Whether the signal comes from the instruction that was interrupted, rather than from somebody who sent it.
pub(super) fn is_fault(signal: libc::c_int, code: libc::c_int) -> bool {
    code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO)
}

fn table() -> [Range; 6] {
    let ([copy, copy_avx], [fold, fold_half]) = (copy::ranges(), fold::ranges());
    [copy, copy_avx, fold, fold_half, atomic::range(), guarded::range()]
}

/// Vector 14 of the x86 architecture.
const PAGE_FAULT_TRAP: i64 = 14;
/// Bit 1 of its error code: the access was a write.
const PAGE_FAULT_WRITE: i64 = 2;
