//! The table of instructions that may fault, and the SIGSEGV and SIGBUS handler that searches it.
//!
//! If the faulting instruction is in the table, the handler writes the fault into the registers of
//! the routine's result, and continues at the routine's exit path. All other faults, and signals
//! that were sent with kill or the like, go to the previous handler (`previous.rs`), as if this
//! handler did not exist. Principal function: [`resolve`].

use std::io;

use super::outcome::{BUS, FAULTED, PAGE_FAULT, Range, WRITE};
use super::{atomic, copy, fold, guarded, previous};

/// Ensures that the fault handler is the process's handler for SIGSEGV and SIGBUS.
///
/// To be called before the first copy, and again at each registration of memory. A program may
/// install a handler of its own at any time. Then this function installs the fault handler on top
/// again, and the fault handler passes other faults on to the program's handler. If nothing has
/// changed, this costs two short system calls and no lock.
///
/// While a program's handler that does not pass faults on is on top, it gets the faults in user
/// memory. A shared library that calls this must stay loaded (link it with `-z nodelete`), because
/// the handler stays installed.
///
/// # Errors
///
/// The error of `sigaction`. The kernel does not refuse these two signals; a sandbox might.
pub fn install() -> io::Result<()> {
    copy::choose();
    previous::install(libc::SIGSEGV)?;
    previous::install(libc::SIGBUS)
}

/// If `context` was interrupted in an instruction of the table, makes it continue at the exit path
/// with the fault as its result.
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
    // SAFETY: the kernel passes a valid context, and no other code uses it while the handler runs.
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

/// Whether the interrupted instruction raised the signal, rather than another thread or process.
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
