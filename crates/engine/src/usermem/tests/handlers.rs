//! Tests with other signal handlers. Each scenario runs in a process of its own: this test binary
//! again, with the scenario's name in the environment. A handler writes its results to standard
//! output, because the process may not outlive it.

use super::super::{FaultSignal, copy, install};
use super::{PAGE, Pages, truncate};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{mem, ptr};

const SCENARIO: &str = "USERMEM_TEST_SCENARIO";

/// Not a test by itself: this is what the child process runs.
#[test]
fn child_process() {
    let Ok(wanted) = std::env::var(SCENARIO) else { return };
    // SAFETY: no core dumps, and no child that hangs.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    // SAFETY: as above.
    unsafe { libc::alarm(60) };
    let (_, scenario) = SCENARIOS.iter().find(|(name, _)| *name == wanted).expect("a scenario of the table");
    scenario();
    say(b"survived\n");
}

/// Runs a scenario and returns its result.
fn play(scenario: &str) -> Output {
    let (_, here) = module_path!().split_once("::").expect("a module below the crate");
    Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", &format!("{here}::child_process"), "--nocapture", "--test-threads=1"])
        .env(SCENARIO, scenario)
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("the test binary starts again")
}

#[track_caller]
fn survives(scenario: &str) {
    let output = play(scenario);
    assert!(output.status.success() && said(&output, "survived") == 1, "{output:?}");
}

#[track_caller]
fn is_killed_by(signal: i32, scenario: &str) -> Output {
    let output = play(scenario);
    assert_eq!(output.status.signal(), Some(signal), "{output:?}");
    assert_eq!(said(&output, "survived"), 0, "{output:?}");
    output
}

/// How often a word was written.
fn said(output: &Output, word: &str) -> usize {
    String::from_utf8_lossy(&output.stdout).matches(word).count()
}

fn say(words: &[u8]) {
    // SAFETY: the words are readable; write may be called in a handler.
    unsafe { libc::write(1, words.as_ptr().cast(), words.len()) };
}

const SCENARIOS: &[(&str, fn())] = &[
    ("a genuine crash", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        crash();
    }),
    ("a genuine crash under the Rust runtime", || {
        ready();
        crash();
    }),
    ("a genuine bus error", || {
        set(libc::SIGBUS, libc::SIG_DFL, 0);
        ready();
        let (mapped, file) = Pages::of_file(1, 1);
        truncate(&file, 0);
        mapped.fill(0, 1, |_| 1);
    }),
    ("sent", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        send(libc::SIGSEGV);
    }),
    ("sent and ignored", || {
        set(libc::SIGSEGV, libc::SIG_IGN, 0);
        ready();
        send(libc::SIGSEGV);
        send(libc::SIGSEGV);
        copy_fails();
    }),
    ("a fault that is ignored", || {
        set(libc::SIGSEGV, libc::SIG_IGN, 0);
        ready();
        crash();
    }),
    ("handler before", || {
        set(libc::SIGSEGV, address(mend), libc::SA_SIGINFO);
        ready();
        mend_and_copy();
    }),
    ("handler after", || {
        ready();
        set(libc::SIGSEGV, address(mend), libc::SA_SIGINFO);
        set(libc::SIGBUS, address(mend), libc::SA_SIGINFO);
        ready();
        mend_and_copy();
    }),
    ("polite handler", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        push_polite::<0>(&FIRST);
        ready();
        crash();
    }),
    ("two polite handlers", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        push_polite::<0>(&FIRST);
        ready();
        push_polite::<1>(&SECOND);
        ready();
        crash();
    }),
    ("polite handler twice", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        for _ in 0..3 {
            push_polite::<0>(&FIRST);
            ready();
        }
        crash();
    }),
    ("handlers that come and go", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        for _ in 0..100 {
            let ours = push_polite::<0>(&FIRST);
            ready();
            set(libc::SIGSEGV, ours.sa_sigaction, ours.sa_flags);
            ready();
        }
        push_polite::<0>(&FIRST);
        ready();
        crash();
    }),
    ("more handlers than levels", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        for _ in 0..20 {
            push_polite::<0>(&FIRST);
            ready();
            push_polite::<1>(&SECOND);
            ready();
        }
        crash();
    }),
    ("old style handler with a mask", || {
        let mut action = action(old_style as *const () as usize, 0);
        // SAFETY: the set is initialised and the signal exists.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1) };
        exchange(libc::SIGSEGV, &action);
        ready();
        let before = blocked();
        let page = shut_page();
        page.fill(0, 1, |_| 7);
        assert_eq!(SEEN_MASK.load(Ordering::Relaxed), bit(libc::SIGUSR1) | bit(libc::SIGSEGV));
        assert_eq!(blocked(), before);
    }),
    ("handler that wants to be interrupted", || {
        set(libc::SIGSEGV, old_style as *const () as usize, libc::SA_NODEFER);
        ready();
        let page = shut_page();
        page.fill(0, 1, |_| 7);
        assert_eq!(SEEN_MASK.load(Ordering::Relaxed), 0);
    }),
    ("handler for once", || {
        set(libc::SIGSEGV, address(mend), libc::SA_SIGINFO | libc::SA_RESETHAND);
        ready();
        let page = shut_page();
        page.fill(0, 1, |_| 7);
        copy_fails();
        page.protect(0, libc::PROT_NONE);
        page.fill(0, 1, |_| 7);
    }),
    ("alternate stack", || {
        set(libc::SIGSEGV, address(mend), libc::SA_SIGINFO | libc::SA_ONSTACK);
        ready();
        let stack = Pages::new(4);
        let (range, stack) = (stack.address(0) as usize..stack.address(4 * PAGE) as usize, stack.at(0).cast());
        let on_a_thread = move |stack: &mut libc::stack_t| {
            // SAFETY: the stack outlives the thread, and no other thread uses it.
            assert_eq!(unsafe { libc::sigaltstack(stack, ptr::null_mut()) }, 0);
            mend_and_copy();
            assert!(range.contains(&STACK.load(Ordering::Relaxed)));
        };
        let mut stack = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: 4 * PAGE };
        on_a_thread(&mut stack);
    }),
    ("stack overflow under the Rust runtime", || {
        ready();
        let deep = std::thread::spawn(|| descend(0));
        let _ = deep.join();
    }),
    ("crash in a thread while others fault in copies", || {
        set(libc::SIGSEGV, libc::SIG_DFL, 0);
        ready();
        let copying = || {
            for _ in 0..100_000 {
                copy_fails();
            }
        };
        std::thread::scope(|scope| {
            let others = [scope.spawn(copying), scope.spawn(copying)];
            copying();
            scope.spawn(crash);
            drop(others);
        });
    }),
];

#[test]
fn a_genuine_crash_still_kills() {
    is_killed_by(libc::SIGSEGV, "a genuine crash");
    is_killed_by(libc::SIGSEGV, "a genuine crash under the Rust runtime");
    is_killed_by(libc::SIGBUS, "a genuine bus error");
    is_killed_by(libc::SIGSEGV, "crash in a thread while others fault in copies");
}

#[test]
fn a_signal_that_is_sent_does_what_it_did() {
    is_killed_by(libc::SIGSEGV, "sent");
    survives("sent and ignored");
    is_killed_by(libc::SIGSEGV, "a fault that is ignored");
}

#[test]
fn the_programs_handler_gets_its_faults_and_no_others() {
    survives("handler before");
    survives("handler after");
    survives("alternate stack");
}

#[test]
fn handlers_on_top_of_ours_are_called_once_each() {
    let output = is_killed_by(libc::SIGSEGV, "polite handler");
    assert_eq!(said(&output, "first"), 1, "{output:?}");
    let output = is_killed_by(libc::SIGSEGV, "two polite handlers");
    assert_eq!((said(&output, "second\nfirst\n"), said(&output, "first")), (1, 1), "{output:?}");
    let output = is_killed_by(libc::SIGSEGV, "polite handler twice");
    assert_eq!(said(&output, "first"), 1, "{output:?}");
    let output = is_killed_by(libc::SIGSEGV, "handlers that come and go");
    assert_eq!(said(&output, "first"), 1, "{output:?}");
    is_killed_by(libc::SIGSEGV, "more handlers than levels");
}

#[test]
fn masks_and_flags_of_the_programs_handler_hold() {
    survives("old style handler with a mask");
    survives("handler that wants to be interrupted");
    is_killed_by(libc::SIGSEGV, "handler for once");
}

#[test]
fn a_stack_overflow_is_still_reported() {
    let output = is_killed_by(libc::SIGABRT, "stack overflow under the Rust runtime");
    assert!(String::from_utf8_lossy(&output.stderr).contains("overflowed its stack"), "{output:?}");
}

// The parts of the scenarios.

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs the engine's handler, and checks that it is on top and works.
fn ready() {
    install().unwrap();
    let on_top = [libc::SIGSEGV, libc::SIGBUS].map(|signal| exchange(signal, ptr::null()).sa_sigaction);
    install().unwrap();
    assert_eq!(on_top, [libc::SIGSEGV, libc::SIGBUS].map(|signal| exchange(signal, ptr::null()).sa_sigaction));
    copy_fails();
}

fn copy_fails() {
    let mut byte = 0u8;
    // SAFETY: a local byte, and an address where nothing is.
    let fault = unsafe { copy(&raw mut byte, 16 as *const u8, 1) }.expect_err("nothing is mapped there");
    assert_eq!((fault.signal, fault.address), (FaultSignal::Segv, 16));
}

/// A fault in the program's own code.
fn crash() {
    // SAFETY: deliberately not safe: the process ends here.
    unsafe { ptr::write_volatile(std::hint::black_box(32 as *mut u8), 1) };
}

fn send(signal: i32) {
    // SAFETY: sends a signal to this process.
    unsafe { libc::raise(signal) };
}

/// Recurses until the stack overflows.
#[inline(never)]
fn descend(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 64]);
    if room[0] == u64::MAX { 0 } else { std::hint::black_box(descend(depth + 1)) + room[0] }
}

/// A page that is inaccessible until [`mend`] makes it accessible.
fn shut_page() -> Pages {
    let page = Pages::new(1);
    page.protect(0, libc::PROT_NONE);
    SHUT.store(page.at(0), Ordering::Relaxed);
    page
}

static SHUT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static MENDED: AtomicUsize = AtomicUsize::new(0);
static STACK: AtomicUsize = AtomicUsize::new(0);
static SEEN_MASK: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The handler of a program that makes memory accessible on demand.
extern "C" fn mend(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let info = unsafe { &*info };
    // SAFETY: a fault's siginfo carries an address.
    let at = unsafe { info.si_addr() };
    assert_eq!(at.cast(), SHUT.load(Ordering::Relaxed));
    STACK.store((&raw const at).addr(), Ordering::Relaxed);
    MENDED.fetch_add(1, Ordering::Relaxed);
    open_page();
}

fn open_page() {
    let page = SHUT.load(Ordering::Relaxed).cast();
    // SAFETY: the page of `shut_page`.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

extern "C" fn old_style(_: i32) {
    SEEN_MASK.store(blocked(), Ordering::Relaxed);
    open_page();
}

fn mend_and_copy() {
    let page = shut_page();
    page.fill(0, 1, |_| 7);
    assert!(page.holds(0, 1, |_| 7));
    copy_fails();
    assert_eq!(MENDED.load(Ordering::Relaxed), 1);
}

static FIRST: &[u8] = b"first\n";
static SECOND: &[u8] = b"second\n";
static NAMES: [AtomicPtr<&'static [u8]>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
static BELOW: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Installs a handler on top that writes its name and calls the handler that it replaced.
fn push_polite<const N: usize>(name: &'static &'static [u8]) -> libc::sigaction {
    NAMES[N].store(ptr::from_ref(name).cast_mut(), Ordering::Relaxed);
    let found = set(libc::SIGSEGV, address(polite::<N>), libc::SA_SIGINFO);
    BELOW[N].store(found.sa_sigaction, Ordering::Relaxed);
    found
}

extern "C" fn polite<const N: usize>(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let name = NAMES[N].load(Ordering::Relaxed);
    // SAFETY: put there by `push_polite`, which takes a static name.
    say(unsafe { *name });
    match BELOW[N].load(Ordering::Relaxed) {
        libc::SIG_DFL | libc::SIG_IGN => {
            set(signal, libc::SIG_DFL, 0);
        }
        below => {
            // SAFETY: the address of a handler.
            let below = unsafe { mem::transmute::<usize, Handler>(below) };
            below(signal, info, context);
        }
    }
}

fn address(handler: Handler) -> usize {
    handler as usize
}

fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all zero is an action with the default handler and an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

fn set(signal: i32, handler: usize, flags: i32) -> libc::sigaction {
    exchange(signal, &action(handler, flags))
}

fn exchange(signal: i32, new: *const libc::sigaction) -> libc::sigaction {
    let mut old = action(0, 0);
    // SAFETY: `new` is null or an initialised action, and `old` is writable.
    assert_eq!(unsafe { libc::sigaction(signal, new, &raw mut old) }, 0);
    old
}

fn blocked() -> usize {
    let mut mask = 0usize;
    let nothing = ptr::null::<usize>();
    // SAFETY: asks for the mask, of the size that the last argument says.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, nothing, &raw mut mask, 8) };
    mask
}

fn bit(signal: i32) -> usize {
    1 << (signal - 1)
}
