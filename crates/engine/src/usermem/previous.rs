//! Coexistence with other signal handlers: how the engine's handler gets on top, and how other
//! signals reach the handlers below.
//!
//! The handlers of a process form a stack that no one manages: each handler remembers the one that
//! it replaced, and should call it. When a program installs its handler on top of the
//! engine's, the engine installs its own on top again at the next registration. The program's
//! handler calls the engine's for faults that it does not know. The engine must then call the
//! handler below *the program's*, not the program's again. So each time, the engine installs a
//! different function, one per level, which knows the handler that it replaced. The level at which
//! it was called determines the next handler.
//!
//! A handler never allocates, locks or logs. Principal type: [`Previous`].

use super::fault;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// How many times the engine's handler can go on top of a handler that was installed over it. After
/// that, the last level is used again. Then a genuine crash may recurse until the stack is full,
/// which also ends the process by SIGSEGV.
const LEVELS: usize = 8;

/// A static, so that each handler has one address.
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

/// The action that the engine's handler replaced. Separate words, because a handler may read them
/// while they change. Any mixture of two actions is harmless, because all handlers are called with
/// three arguments.
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
        // Pairs with the load in `pass_on`: a thread that reads the handler also reads its flags.
        self.handler.store(found.sa_sigaction, Ordering::Release);
    }
}

static SEGV: [Previous; LEVELS] = [const { Previous::nobody() }; LEVELS];
static BUS: [Previous; LEVELS] = [const { Previous::nobody() }; LEVELS];

fn levels_of(signal: libc::c_int) -> &'static [Previous; LEVELS] {
    if signal == libc::SIGBUS { &BUS } else { &SEGV }
}

/// For each signal, how many levels are in use: one more than the level that was last on top.
static IN_USE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

fn in_use(signal: libc::c_int) -> &'static AtomicUsize {
    &IN_USE[usize::from(signal == libc::SIGBUS)]
}

/// Installs the engine's handler on top for `signal`, unless it is there.
pub(super) fn install(signal: libc::c_int) -> io::Result<()> {
    if on_top(signal, &installed(signal)?) { Ok(()) } else { install_over(signal) }
}

/// Whether `found` is the engine's handler; if so, the levels above it are free again.
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
    // Before the new handler can be called, so that a fault in between finds the handler below.
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
    // SAFETY: `new` is null or an initialised action whose handler has the signature that its flags
    // promise; `old` is writable.
    if unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it has filled in the old action.
    Ok(unsafe { old.assume_init() })
}

/// The action that puts `handler` on top of `below`. It uses the alternate stack, because a handler
/// below may exist to report a stack overflow. The signal itself stays unblocked while the handler
/// runs. Signals that the handler below wants blocked are blocked when it is called.
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

// SAFETY: a signal set is an array of words, and all zero is the empty set (that is what
// sigemptyset writes).
const NO_SIGNALS: libc::sigset_t = unsafe { std::mem::zeroed() };

extern "C" fn on_signal<const LEVEL: usize>(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel, or a handler that passes on what the kernel gave it, calls this with
    // valid pointers.
    if unsafe { fault::resolve(signal, info, context.cast()) } {
        return;
    }
    // SAFETY: as above.
    unsafe { pass_on(LEVEL, signal, info, context) };
}

/// Does what would have happened if the handler of `level` had never been installed.
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
        // A fault cannot be ignored: the kernel then takes the default action and ends the process.
        (_, libc::SIG_IGN) if !fault::is_fault(signal, code) => {}
        (None, _) | (_, libc::SIG_DFL | libc::SIG_IGN) => {
            let _ = exchange(signal, Some(&DEFAULT));
            if !fault::is_fault(signal, code) {
                // SAFETY: the kernel passes a valid siginfo.
                unsafe { send_again(signal, info) };
            }
            // A fault happens again on return, now without a handler: the core dump shows the
            // place.
        }
        (Some(previous), _) => {
            let flags = previous.flags.load(Ordering::Relaxed);
            if flags & libc::SA_RESETHAND != 0 {
                previous.handler.store(libc::SIG_DFL, Ordering::Relaxed);
            }
            // SAFETY: neither SIG_DFL nor SIG_IGN, so it is the address of a handler that the
            // program installed; one that takes only the signal number ignores the other two
            // (System V ABI).
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            let itself = if flags & libc::SA_NODEFER == 0 { bit(signal) } else { 0 };
            let before = block(previous.mask.load(Ordering::Relaxed) | itself);
            handler(signal, info, context);
            set_mask(before);
        }
    }
}

/// The handler to call after that of `level`. A handler that appears again at a higher level has
/// been called already and is skipped; otherwise the two would call each other for ever.
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

/// Sends a signal that came from a process to this thread again, with the sender's data.
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
        // SAFETY: the set is initialised. The result is 0 for the two signals that the C library
        // reserves for itself.
        unsafe { libc::sigismember(set, *signal) == 1 }
    };
    (1..=64).filter(member).map(bit).sum()
}

/// Blocks `signals` in addition and returns the previous mask. By system call, because the kernel's
/// set is one word.
fn block(signals: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both point to a set of the size in the last argument.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const signals, &raw mut before, size_of::<u64>())
    };
    before
}

fn set_mask(signals: u64) {
    let nothing = ptr::null_mut::<u64>();
    // SAFETY: `signals` is a set of the size in the last argument, and the old set is not
    // requested.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const signals, nothing, size_of::<u64>())
    };
}
