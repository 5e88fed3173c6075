//! Keepalives: one thread that sometimes sends an empty message over the connections that want
//! keepalives, so that a dead peer is noticed. The thread ends when no connection wants them. The
//! principal type is [`Keepalive`].

use super::stream::StreamSocket;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The connections that want keepalives.
#[derive(Default)]
pub(crate) struct Keepalive {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    watched: Vec<Watch>,
    running: bool,
}

struct Watch {
    socket: Weak<StreamSocket>,
    every: Duration,
    next: Instant,
}

impl Keepalive {
    /// From now on sends a keepalive over the connection every `seconds` seconds. `None` ends this.
    pub(crate) fn set(&'static self, socket: &Arc<StreamSocket>, seconds: Option<u32>) {
        let mut list = self.list.lock();
        list.watched.retain(|watch| !std::ptr::eq(watch.socket.as_ptr(), Arc::as_ptr(socket)));
        if let Some(seconds) = seconds {
            let every = Duration::from_secs(seconds.max(1).into());
            list.watched.push(Watch { socket: Arc::downgrade(socket), every, next: Instant::now() + every });
            if !list.running {
                list.running = std::thread::Builder::new().name("softhca-alive".into()).spawn(|| self.run()).is_ok();
            }
        }
        self.changed.notify_all();
    }

    fn run(&self) {
        block_signals();
        let mut list = self.list.lock();
        loop {
            list.watched.retain(|watch| watch.socket.strong_count() > 0);
            let now = Instant::now();
            let mut due = Vec::new();
            for watch in list.watched.iter_mut().filter(|watch| watch.next <= now) {
                watch.next = now + watch.every;
                due.extend(watch.socket.upgrade());
            }
            let Some(next) = list.watched.iter().map(|watch| watch.next).min() else {
                list.running = false;
                return;
            };
            if due.is_empty() {
                self.changed.wait_until(&mut list, next);
            } else {
                drop(list);
                for socket in due {
                    socket.keep_alive();
                }
                list = self.list.lock();
            }
        }
    }
}

/// Blocks the program's signals in a thread of this library.
fn block_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is used; the calling thread belongs to this library.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigdelset(set.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}
