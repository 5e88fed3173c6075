//! A thread per user that closes and examines the descriptors of that user's programs.
//!
//! A program can pass a descriptor whose close(2) or fstat(2) blocks for as long as the program likes: a TCP socket with
//! SO_LINGER and unsent data, or a file of a FUSE server that does not answer. A socket of a program may hold such a
//! descriptor in a message that nobody has read; the kernel closes the descriptor in the thread that closes the socket. So
//! the serving thread does neither. It hands what a program passed, and the program's connections, to the thread of the
//! program's user, and a descriptor that blocks holds up that user alone. The thread starts on demand and ends when it has
//! had nothing to do for a while. What a descriptor is, [`crate::foreign`] says. The principal types are [`Closers`] and
//! [`Closer`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::agent::Inbox;
use crate::foreign::{Foreign, Passed};
use crate::local::Message;

/// While more descriptors than this wait for their user's thread, the agent reads no messages of that user.
const WAITING_MAX: usize = 1024;
/// How long a thread waits for more to do before it ends.
const IDLE: Duration = Duration::from_secs(2);
/// The stack of a thread: it makes system calls and little else.
const STACK: usize = 128 << 10;

/// What is done with examined descriptors.
type Then = Box<dyn FnOnce(Vec<Passed>) + Send>;

/// The threads of all users.
#[derive(Debug, Default)]
pub struct Closers {
    /// None: all clients are of this process, and descriptors are closed where they are dropped.
    inbox: Option<Inbox>,
    users: BTreeMap<u32, Weak<User>>,
}

/// Closes and examines the descriptors of one user.
#[derive(Debug, Clone, Default)]
pub struct Closer(Option<Arc<User>>);

struct User {
    uid: u32,
    inbox: Inbox,
    work: Mutex<Work>,
    more: Condvar,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// Descriptors that wait or that the thread is at.
    waiting: usize,
    /// The thread runs.
    runs: bool,
    /// The agent reads no messages of this user until fewer descriptors wait.
    held_up: bool,
    /// There is no thread that would keep the user while jobs wait.
    kept: Option<Arc<User>>,
}

enum Job {
    Close(OwnedFd),
    Examine(Vec<Foreign>, Then),
}

impl Closers {
    /// Threads for the users of an agent, which reads `inbox`.
    pub(crate) fn threads(inbox: Inbox) -> Self {
        Self { inbox: Some(inbox), users: BTreeMap::new() }
    }

    /// What closes the descriptors of a user.
    pub fn of(&mut self, uid: u32) -> Closer {
        let Some(inbox) = &self.inbox else { return Closer(None) };
        if let Some(user) = self.users.get(&uid).and_then(Weak::upgrade) {
            return Closer(Some(user));
        }
        self.users.retain(|_, user| user.strong_count() > 0);
        let user = Arc::new(User { uid, inbox: inbox.clone(), work: Mutex::default(), more: Condvar::new() });
        self.users.insert(uid, Arc::downgrade(&user));
        Closer(Some(user))
    }
}

impl Closer {
    /// Closes a descriptor, without waiting for that.
    pub(crate) fn close(&self, fd: OwnedFd) {
        match &self.0 {
            Some(user) => user.submit(Job::Close(fd)),
            None => drop(fd),
        }
    }

    /// Finds out what descriptors are, and does something with them then: on the user's thread.
    pub(crate) fn examine(&self, fds: Vec<Foreign>, then: impl FnOnce(Vec<Passed>) + Send + 'static) {
        match &self.0 {
            Some(user) => user.submit(Job::Examine(fds, Box::new(then))),
            None => then(fds.into_iter().map(Passed::examine).collect()),
        }
    }

    /// Whether so many descriptors of this user wait that nothing more is read from its programs. If so, the agent gets a
    /// message when that is over.
    pub(crate) fn is_full(&self) -> bool {
        let Some(user) = &self.0 else { return false };
        let mut work = user.work.lock();
        work.held_up |= work.waiting >= WAITING_MAX;
        work.held_up
    }
}

impl User {
    fn submit(self: &Arc<Self>, job: Job) {
        let mut work = self.work.lock();
        work.waiting += job.descriptors();
        work.jobs.push_back(job);
        if work.runs {
            self.more.notify_one();
            return;
        }
        let user = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("softhca-u{}", self.uid)).stack_size(STACK);
        match thread.spawn(move || user.run()) {
            Ok(_) => (work.runs, work.kept) = (true, None),
            Err(error) => {
                // The next job tries again. Until then this user's descriptors wait, and nobody else's.
                tracing::warn!(uid = self.uid, %error, "no thread for the descriptors of a user");
                work.kept = Some(Arc::clone(self));
            }
        }
    }

    /// The thread.
    fn run(self: Arc<Self>) {
        loop {
            let mut work = self.work.lock();
            if work.jobs.is_empty() {
                self.more.wait_for(&mut work, IDLE);
            }
            let Some(job) = work.jobs.pop_front() else {
                work.runs = false;
                return;
            };
            drop(work);
            let count = job.descriptors();
            Self::carry_out(job);
            let mut work = self.work.lock();
            work.waiting -= count;
            let has_room = work.held_up && work.waiting <= WAITING_MAX / 2;
            if has_room {
                work.held_up = false;
            }
            drop(work);
            if has_room {
                self.inbox.send(Message::Room(self.uid));
            }
        }
    }

    fn carry_out(job: Job) {
        match job {
            Job::Close(fd) => drop(fd),
            Job::Examine(fds, then) => then(fds.into_iter().map(Passed::examine).collect()),
        }
    }
}

impl Job {
    fn descriptors(&self) -> usize {
        match self {
            Self::Close(_) => 1,
            Self::Examine(fds, _) => fds.len(),
        }
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("uid", &self.uid).field("waiting", &self.work.lock().waiting).finish()
    }
}
