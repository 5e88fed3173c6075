//! Living with other people's signal handlers: how ours gets on top, and how what is not ours reaches theirs.
//!
//! Handlers of a process form a stack that nobody keeps: each remembers what it found, and calls it if it is polite. When a
//! program puts its handler on top of ours, ours goes on top again at the next registration; the program's handler,
//! being polite, calls ours for faults that it does not know, and must then reach what was below *it*, not itself. So each
//! time that ours goes on top it does so as a different function, one per level, which knows what it found: the level that
//! a handler was called at says whom to call next.
//!
//! Nothing here allocates, locks or logs inside a handler.

use super::fault;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// How many times ours can go on top of a handler that came on top of ours. After that the last level is used again: then a
/// genuine crash may go round in circles until the stack is full, which ends the process by SIGSEGV all the same.
const LEVELS: usize = 8;

/// A static, so that there is one address of each.
static HANDLERS: [Handler; LEVELS] = [
    on_signal::<0>,
    on_signal::<1>,
    on_signal::<2>,
    on_signal::<3>,
    on_signal::<4>,
    on_signal::<5>,
    on_signal::<6>,
    on_signal::<7>,
];

/// What ours found when it went on top. Words of their own, because a handler may read them while they change; every mixture
/// of two handlers' values is harmless, as all handlers are called with three arguments.
struct Previous {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The signals 1 to 64 that the handler wants blocked, bit 0 for signal 1.
    mask: AtomicU64,
}

impl Previous {
    const fn nobody() -> Previous {
        Previous { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
    }

    fn remember(&self, found: &libc::sigaction) {
        self.flags.store(found.sa_flags, Ordering::Relaxed);
        self.mask.store(bits_of(&found.sa_mask), Ordering::Relaxed);
        // Pairs with the load in `pass_on`, so that whoever sees the handler sees its flags.
        self.handler.store(found.sa_sigaction, Ordering::Release);
    }
}

static SEGV: [Previous; LEVELS] = [const { Previous::nobody() }; LEVELS];
static BUS: [Previous; LEVELS] = [const { Previous::nobody() }; LEVELS];

fn levels_of(signal: libc::c_int) -> &'static [Previous; LEVELS] {
    if signal == libc::SIGBUS { &BUS } else { &SEGV }
}

/// For each signal, how many levels are in use: one more than the level that was last seen on top.
static IN_USE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

fn in_use(signal: libc::c_int) -> &'static AtomicUsize {
    &IN_USE[usize::from(signal == libc::SIGBUS)]
}

/// Puts ours on top for `signal` unless it is there.
pub(super) fn install(signal: libc::c_int) -> io::Result<()> {
    if on_top(signal, &installed(signal)?) { Ok(()) } else { install_over(signal) }
}

/// Whether `found` is ours; if so, the levels above it are free again.
fn on_top(signal: libc::c_int, found: &libc::sigaction) -> bool {
    let Some(level) = HANDLERS.iter().position(|ours| *ours as usize == found.sa_sigaction) else {
        return false;
    };
    if in_use(signal).load(Ordering::Relaxed) != level + 1 {
        in_use(signal).store(level + 1, Ordering::Relaxed);
    }
    true
}

#[cold]
fn install_over(signal: libc::c_int) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = installed(signal)?;
    if on_top(signal, &found) {
        return Ok(());
    }
    let level = in_use(signal).load(Ordering::Relaxed).min(LEVELS - 1);
    let previous = &levels_of(signal)[level];
    // Before ours can be called, so that a fault in between finds its way.
    previous.remember(&found);
    in_use(signal).store(level + 1, Ordering::Relaxed);
    let replaced = exchange(signal, Some(&ours(HANDLERS[level], &found)))?;
    if replaced.sa_sigaction != found.sa_sigaction && !on_top(signal, &replaced) {
        // The program changed it between the two calls.
        previous.remember(&replaced);
    }
    Ok(())
}

fn installed(signal: libc::c_int) -> io::Result<libc::sigaction> {
    exchange(signal, None)
}

fn exchange(signal: libc::c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or an initialised action whose handler has the signature that its flags promise; `old` is
    // writable.
    if unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it has filled in the old action.
    Ok(unsafe { old.assume_init() })
}

/// The action that puts `handler` on top of `below`. On the alternate stack, because a handler below may be there to report
/// a stack overflow; the signal itself stays open while it runs, and what the handler below wants blocked is blocked when
/// it is called.
fn ours(handler: Handler, below: &libc::sigaction) -> libc::sigaction {
    let calls_restart = below.sa_flags & libc::SA_RESTART;
    let nobody = below.sa_sigaction == libc::SIG_DFL || below.sa_sigaction == libc::SIG_IGN;
    libc::sigaction {
        sa_sigaction: handler as usize,
        sa_mask: NO_SIGNALS,
        sa_flags: libc::SA_SIGINFO
            | libc::SA_ONSTACK
            | libc::SA_NODEFER
            | if nobody { libc::SA_RESTART } else { calls_restart },
        sa_restorer: None,
    }
}

// SAFETY: a signal set is an array of words, and all zero is the empty set (that is what sigemptyset writes).
const NO_SIGNALS: libc::sigset_t = unsafe { std::mem::zeroed() };

extern "C" fn on_signal<const LEVEL: usize>(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel, or a handler that passes on what the kernel gave it, calls this with valid pointers.
    if unsafe { fault::resolve(signal, info, context.cast()) } {
        return;
    }
    // SAFETY: as above.
    unsafe { pass_on(LEVEL, signal, info, context) };
}

/// Does what would have happened if the handler of `level` had never been put on top.
///
/// # Safety
///
/// `info` and `context` must be what the kernel passed to the handler of `signal`.
unsafe fn pass_on(level: usize, signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let code = unsafe { (*info).si_code };
    let previous = next_below(level, signal);
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.handler.load(Ordering::Acquire));
    match (previous, handler) {
        // A fault cannot be ignored: the kernel takes it for the default, which is to end the process.
        (_, libc::SIG_IGN) if !fault::is_fault(signal, code) => {}
        (None, _) | (_, libc::SIG_DFL | libc::SIG_IGN) => {
            let _ = exchange(signal, Some(&DEFAULT));
            if !fault::is_fault(signal, code) {
                // SAFETY: the kernel passes a valid siginfo.
                unsafe { send_again(signal, info) };
            }
            // A fault happens again on return, now without a handler: the core dump shows the place.
        }
        (Some(previous), _) => {
            let flags = previous.flags.load(Ordering::Relaxed);
            if flags & libc::SA_RESETHAND != 0 {
                previous.handler.store(libc::SIG_DFL, Ordering::Relaxed);
            }
            // SAFETY: neither SIG_DFL nor SIG_IGN, so it is the address of a handler that the program installed; one that
            // takes only the signal number ignores the other two (System V ABI).
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            let itself = if flags & libc::SA_NODEFER == 0 { bit(signal) } else { 0 };
            let before = block(previous.mask.load(Ordering::Relaxed) | itself);
            handler(signal, info, context);
            set_mask(before);
        }
    }
}

/// Who comes after the handler of `level`. A handler that is there again further up has been called already and is passed
/// over, or the two would call each other for ever.
fn next_below(level: usize, signal: libc::c_int) -> Option<&'static Previous> {
    let levels = levels_of(signal);
    let used = in_use(signal).load(Ordering::Relaxed).min(LEVELS);
    let handler_at = |level: usize| levels[level].handler.load(Ordering::Relaxed);
    let special = |handler| handler == libc::SIG_DFL || handler == libc::SIG_IGN;
    (0..=level)
        .rev()
        .find(|&below| {
            let handler = handler_at(below);
            special(handler) || !(below + 1..used).any(|above| handler_at(above) == handler)
        })
        .map(|level| &levels[level])
}

const DEFAULT: libc::sigaction =
    libc::sigaction { sa_sigaction: libc::SIG_DFL, sa_mask: NO_SIGNALS, sa_flags: 0, sa_restorer: None };

/// Sends a signal that somebody sent to this thread to it again, with the sender's data.
///
/// # Safety
///
/// `info` must be a valid siginfo.
unsafe fn send_again(signal: libc::c_int, info: *const libc::siginfo_t) {
    // SAFETY: getpid has no conditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: gettid has no conditions.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the kernel reads the siginfo, which the caller vouches for.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) };
}

fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

fn bits_of(set: &libc::sigset_t) -> u64 {
    let member = |signal: &libc::c_int| {
        // SAFETY: the set is initialised. It answers 0 for the two signals that the C library keeps for itself.
        unsafe { libc::sigismember(set, *signal) == 1 }
    };
    (1..=64).filter(member).map(bit).sum()
}

/// Blocks `signals` as well and returns what was blocked before. By system call, as the kernel's set is one word.
fn block(signals: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both point to a set of the size that the last argument says.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const signals, &raw mut before, size_of::<u64>())
    };
    before
}

fn set_mask(signals: u64) {
    let nothing = ptr::null_mut::<u64>();
    // SAFETY: `signals` is a set of the size that the last argument says, and the old set is not asked for.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const signals, nothing, size_of::<u64>())
    };
}
