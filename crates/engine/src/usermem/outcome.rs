//! How an access to user memory ends: the results of the routines, and faults as values. Principal
//! type: [`Fault`].

use std::fmt;

/// A failed access to user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which access failed.
    pub side: Side,
    /// The signal that the fault would have raised.
    pub signal: FaultSignal,
    /// The address that could not be accessed, if the processor reports it. For an address that no
    /// mapping can have (not canonical), the start of the range.
    pub address: u64,
}

/// Which half of an operation had the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source of a copy, or the word that a load reads.
    Read,
    /// The destination of a copy, or the word that an atomic operation changes.
    Write,
}

/// The signal that a fault would have raised.
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

/// Instructions whose faults become return values.
#[derive(Clone, Copy)]
pub(super) struct Range {
    /// The first instruction.
    pub(super) begin: u64,
    /// The address after the last instruction.
    pub(super) end: u64,
    /// Where to continue after a fault: this code returns with rax and rdx unchanged.
    pub(super) fixup: u64,
}

/// What a routine of the table returns, in rax and rdx (System V ABI: a struct of two words).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    /// 0, or a failure: [`FAULTED`] and the handler's flags.
    how: u64,
    /// The value, or the faulting address.
    pub(super) value: u64,
}

pub(super) const FAULTED: u64 = 1;
/// The signal was SIGBUS.
pub(super) const BUS: u64 = 2;
/// The processor's page-fault error code is known.
pub(super) const PAGE_FAULT: u64 = 4;
/// The error code says that the access was a write.
pub(super) const WRITE: u64 = 8;

impl Outcome {
    #[inline]
    pub(super) fn is_done(self) -> bool {
        self.how == 0
    }

    /// The raw result. Results of 256 and above are not faults; the routine defines them.
    #[inline]
    pub(super) fn how(self) -> u64 {
        self.how
    }

    /// The fault of a load of the word at `address`.
    #[cold]
    pub(super) fn fault_of_load(self, address: u64) -> Fault {
        Fault { side: Side::Read, signal: self.signal(), address }
    }

    /// The fault of an atomic operation on the word at `address`.
    #[cold]
    pub(super) fn fault_of_update(self, address: u64) -> Fault {
        Fault { side: Side::Write, signal: self.signal(), address }
    }

    fn signal(self) -> FaultSignal {
        if self.how & BUS != 0 { FaultSignal::Bus } else { FaultSignal::Segv }
    }

    /// The fault of a copy that read `len` bytes at `src` and wrote as many at `dst`.
    #[cold]
    pub(super) fn fault_of_copy(self, src: u64, len: u64, dst: u64) -> Fault {
        let signal = self.signal();
        if self.how & PAGE_FAULT != 0 {
            let side = if self.how & WRITE != 0 { Side::Write } else { Side::Read };
            return Fault { side, signal, address: self.value };
        }
        // The processor reported no address (a general-protection fault: one of the ranges leaves
        // the canonical half), or an address rounded to a page (a memory error).
        let holds = |start: u64| self.value >= start & !0xfff && self.value < start.saturating_add(len);
        let leaves = |start: u64| start.saturating_add(len) > CANONICAL;
        let side = if holds(src) || (!holds(dst) && leaves(src)) { Side::Read } else { Side::Write };
        let start = if side == Side::Read { src } else { dst };
        Fault { side, signal, address: if holds(start) { self.value } else { start } }
    }
}

/// The end of the lower half of the address space. All user memory lies below it unless the program
/// asks for more.
const CANONICAL: u64 = 1 << 47;
