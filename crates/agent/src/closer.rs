//! One thread per user, which receives, examines, uses and closes the descriptors of that user's
//! programs.
//!
//! A program can pass a descriptor whose close(2) or fstat(2) blocks for as long as the program
//! likes. Examples are a TCP socket with SO_LINGER and unsent data, and a file of a FUSE server
//! that does not answer. The kernel closes such descriptors in the thread that closes a socket with
//! unread messages. It also closes them in the thread that receives a message, if the process has
//! no room for its descriptors.
//!
//! A program can also hold a lock that a call of the agent needs. The kernel holds the lock of a
//! TCP socket while it copies what a program sends, and the lock of a file in memory while it copies
//! what a program writes. The copy lasts as long as the program likes if it is from a file of such a
//! FUSE server.
//!
//! So the agent's thread neither receives nor closes descriptors of programs, and it makes no call
//! that needs such a lock:
//!
//! * A message with descriptors stays in its socket until the thread of the program's user receives
//!   it.
//! * When a connection ends, its socket is shut down, so that its program cannot send any more. If
//!   the socket then holds no descriptor, it is closed at once. Otherwise it is sent into a socket
//!   pair of the agent ([`Lot`]). There it takes no slot of the agent's descriptor table, however
//!   long the thread is blocked and however many connections the user makes. The thread discards
//!   the message, and the kernel closes the connection there. The kernel allows a user at most
//!   RLIMIT_NOFILE descriptors in messages, so the number of sockets with descriptors is bounded.
//! * A received descriptor stays in the table until the thread closes it. It cannot be sent away,
//!   because a FUSE server is asked at each close(2) of its file, and not only at the last one.
//!   While the thread is blocked, no more descriptors are received.
//! * The thread makes all calls on a socket or eventfd that a program has, too, and returns pages of
//!   its queue memory ([`Closer::act`]).
//!
//! So a user whose thread is blocked keeps its slots, plus two for each lot. An agent without
//! CAP_SYS_RESOURCE may have as many descriptors in messages as it may have open. Sockets beyond
//! that number stay in the table. The thread starts on demand and ends when it has been idle for a
//! while. [`crate::foreign`] finds out what a descriptor is. The principal types are [`Closers`]
//! and [`Closer`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use abi::envelope::REQUEST_MAX;
use parking_lot::{Condvar, Mutex};
use rustix::io::ReadWriteFlags;
use shm::socket::Socket;

use crate::foreign::{Foreign, ReceivedMessage};
use crate::headroom;
use crate::host::Host;

/// How long an idle thread waits before it ends.
const IDLE: Duration = Duration::from_secs(2);
/// The stack of a thread. The thread makes system calls and does little else.
const STACK: usize = 128 << 10;

/// Tells the agent that messages of a user can be read again.
type Room = Arc<dyn Fn(u32) + Send + Sync>;
/// What the thread of a user does.
type Act = Box<dyn FnOnce() + Send>;

/// The threads of all users.
#[derive(Default)]
pub struct Closers {
    /// How to tell the agent of room, and how much of one user may wait. `None`: all clients are in
    /// this process, and descriptors are closed where they are dropped.
    threads: Option<(Room, usize)>,
    users: BTreeMap<u32, Weak<UserThread>>,
    /// Users whose thread could not be started.
    late: Arc<AtomicUsize>,
}

/// Receives, examines and closes the descriptors of one user.
#[derive(Debug, Clone, Default)]
pub struct Closer(ClosePlace);

/// Where descriptors are closed.
#[derive(Debug, Clone, Default)]
enum ClosePlace {
    /// On the thread that drops them.
    #[default]
    Here,
    /// On the thread of their user.
    User(Arc<UserThread>),
    /// Where this host does what takes long. These descriptors are the agent's own.
    Deferred(Arc<dyn Host>),
}

struct UserThread {
    uid: u32,
    room: Room,
    /// While this many of its jobs and sockets wait, the agent reads no messages of this user.
    most: usize,
    late: Arc<AtomicUsize>,
    work: Mutex<JobQueue>,
    more: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<CloserJob>,
    /// Sockets are added to the last lot and taken from the first one. No lot is empty.
    lots: VecDeque<Lot>,
    /// How many jobs and sockets wait or are in work.
    waiting: usize,
    /// The thread runs.
    runs: bool,
    /// The agent reads no messages of this user until fewer wait.
    held_up: bool,
    /// Keeps the user alive while jobs wait and no thread could be started.
    kept: Option<Arc<UserThread>>,
    /// Eventfds of contexts that have ended, to which the thread still writes or will write.
    ended: Vec<Weak<Foreign>>,
}

enum CloserJob {
    Close(OwnedFd),
    Act(Act),
}

/// Sockets that wait to be closed. Each of them is in a message from one of the agent's own sockets
/// to the other.
struct Lot {
    into: Socket,
    out: Arc<Socket>,
    len: usize,
}

/// What a thread does next.
enum ThreadTask {
    Job(CloserJob),
    Discard(Arc<Socket>),
}

impl Closers {
    /// Creates threads for the users of an agent. `room` tells the agent whose messages it can read
    /// again.
    pub(crate) fn threads(room: impl Fn(u32) + Send + Sync + 'static, most: usize) -> Self {
        Self { threads: Some((Arc::new(room), most)), ..Self::default() }
    }

    /// The closer for the descriptors of a user.
    pub fn of(&mut self, uid: u32) -> Closer {
        let Some((room, most)) = &self.threads else { return Closer::default() };
        if let Some(user) = self.users.get(&uid).and_then(Weak::upgrade) {
            user.end_writes();
            return Closer(ClosePlace::User(user));
        }
        self.users.retain(|_, user| user.strong_count() > 0);
        let (room, most) = (Arc::clone(room), *most);
        let late = Arc::clone(&self.late);
        let user = Arc::new(UserThread { uid, room, most, late, work: Mutex::default(), more: Condvar::new() });
        self.users.insert(uid, Arc::downgrade(&user));
        Closer(ClosePlace::User(user))
    }

    /// Whether threads that are needed could not be started. If `again`, tries to start them.
    pub(crate) fn are_late(&self, again: bool) -> bool {
        if self.late.load(Relaxed) > 0 && again {
            for user in self.users.values().filter_map(Weak::upgrade) {
                user.start(&mut user.work.lock());
            }
        }
        self.late.load(Relaxed) > 0
    }
}

/// Closes a descriptor of the agent's own shared memory on the host's thread. Beyond a number that
/// wait, the caller closes it, so that a client cannot open them faster than they are closed.
fn close_later(host: &dyn Host, fd: OwnedFd) {
    const WAITING_MAX: usize = 4096;
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    if WAITING.load(Relaxed) >= WAITING_MAX {
        return drop(fd);
    }
    WAITING.fetch_add(1, Relaxed);
    host.later(Box::new(move || {
        drop(fd);
        WAITING.fetch_sub(1, Relaxed);
    }));
}

impl Closer {
    /// The closer for the agent's own shared memory.
    pub(crate) fn deferred(host: Arc<dyn Host>) -> Self {
        Self(ClosePlace::Deferred(host))
    }

    /// Closes a descriptor without waiting.
    pub(crate) fn close(&self, fd: OwnedFd) {
        match &self.0 {
            ClosePlace::User(user) => user.submit(CloserJob::Close(fd)),
            ClosePlace::Deferred(host) => close_later(&**host, fd),
            ClosePlace::Here => drop(fd),
        }
    }

    /// Ends a connection without waiting until its descriptors are closed.
    pub(crate) fn end(&self, socket: Socket) {
        match &self.0 {
            ClosePlace::User(user) if !socket.end() => user.put_away(socket),
            _ => drop(socket),
        }
    }

    /// Does something that a program of the user can make last, on the user's thread. It comes after
    /// all jobs that the thread was given before.
    pub(crate) fn act(&self, act: impl FnOnce() + Send + 'static) {
        match &self.0 {
            ClosePlace::User(user) => user.submit(CloserJob::Act(Box::new(act))),
            _ => act(),
        }
    }

    /// The context of an eventfd has ended. A write to the full eventfd would wait for ever, because
    /// perhaps nobody is left who reads it.
    pub(crate) fn end_writes(&self, eventfd: &Arc<Foreign>) {
        if let ClosePlace::User(user) = &self.0 {
            user.work.lock().ended.push(Arc::downgrade(eventfd));
            user.end_writes();
        }
    }

    /// Receives the next message of a connection and examines its descriptors, on the user's
    /// thread, and then calls `then` there. If the connection ends first, nothing happens.
    pub(crate) fn receive(&self, socket: &Arc<Foreign<Socket>>, then: impl FnOnce(ReceivedMessage) + Send + 'static) {
        let socket = Arc::downgrade(socket);
        self.act(move || {
            if let Some(socket) = socket.upgrade() {
                then(ReceivedMessage::receive(&socket, &mut vec![0; REQUEST_MAX + 1]));
            }
        });
    }

    /// Whether so much of this user waits that nothing more is read from its programs. If so, the
    /// agent gets a message as soon as there is room.
    pub(crate) fn is_full(&self) -> bool {
        let ClosePlace::User(user) = &self.0 else { return false };
        let mut work = user.work.lock();
        work.held_up |= work.waiting >= user.most;
        work.held_up
    }
}

impl UserThread {
    fn submit(self: &Arc<Self>, job: CloserJob) {
        let mut work = self.work.lock();
        work.jobs.push_back(job);
        self.add(&mut work);
    }

    /// Lets the thread close a socket that takes no slot until then.
    fn put_away(self: &Arc<Self>, socket: Socket) {
        let mut work = self.work.lock();
        if let Err(error) = work.put_away(&socket) {
            tracing::debug!(uid = self.uid, %error, "a socket waits for its end in the table of descriptors");
            work.jobs.push_back(CloserJob::Close(socket.into()));
        } else {
            // The thread cannot take the other socket while the lock is held, so this is not the
            // last reference.
            drop(socket);
        }
        self.add(&mut work);
    }

    /// Empties the eventfds of contexts that have ended, which ends a write that waits. Another
    /// process of the user can fill one again. So this is repeated whenever the user connects.
    fn end_writes(&self) {
        let ended: Vec<Arc<Foreign>> = {
            let mut work = self.work.lock();
            work.ended.retain(|eventfd| eventfd.strong_count() > 0);
            work.ended.iter().filter_map(Weak::upgrade).collect()
        };
        // The last reference to an eventfd is not dropped under the lock, which its closing needs.
        for eventfd in ended {
            let mut count = [0; 8];
            let mut buffer = [IoSliceMut::new(&mut count)];
            // With RWF_NOWAIT, the program cannot make this block. The offset stands for none.
            let _ = rustix::io::preadv2(&*eventfd, &mut buffer, u64::MAX, ReadWriteFlags::NOWAIT);
        }
    }

    /// Counts one more job or socket, and makes the thread run.
    fn add(self: &Arc<Self>, work: &mut JobQueue) {
        work.waiting += 1;
        self.start(work);
    }

    /// Makes the thread run if it has something to do.
    fn start(self: &Arc<Self>, work: &mut JobQueue) {
        if work.runs {
            self.more.notify_one();
            return;
        }
        if work.waiting == 0 {
            return;
        }
        let user = Arc::clone(self);
        match headroom::start_for(self.uid, format!("softhca-u{}", self.uid), STACK, move || user.run()) {
            Ok(_) => {
                work.runs = true;
                if work.kept.take().is_some() {
                    self.late.fetch_sub(1, Relaxed);
                }
            }
            // The agent tries again later. Until then only this user's descriptors wait.
            Err(error) if work.kept.is_none() => {
                tracing::warn!(uid = self.uid, %error, "no thread for the descriptors of a user");
                work.kept = Some(Arc::clone(self));
                self.late.fetch_add(1, Relaxed);
            }
            Err(_) => {}
        }
    }

    /// The thread's loop.
    fn run(self: Arc<Self>) {
        loop {
            let mut work = self.work.lock();
            if work.waiting == 0 {
                self.more.wait_for(&mut work, IDLE);
            }
            let Some(next) = work.next() else {
                work.runs = false;
                return;
            };
            drop(work);
            match next {
                ThreadTask::Job(CloserJob::Close(fd)) => drop(fd),
                ThreadTask::Job(CloserJob::Act(act)) => act(),
                ThreadTask::Discard(lot) => {
                    if let Err(error) = lot.discard() {
                        tracing::warn!(uid = self.uid, %error, "a socket that was put away is lost");
                    }
                }
            }
            if self.has_room() {
                (self.room)(self.uid);
            }
        }
    }

    /// Counts one job or socket as done. Returns true if messages can be read again.
    fn has_room(&self) -> bool {
        let mut work = self.work.lock();
        work.waiting -= 1;
        let has_room = work.held_up && work.waiting <= self.most / 2;
        work.held_up &= !has_room;
        has_room
    }
}

impl JobQueue {
    fn next(&mut self) -> Option<ThreadTask> {
        if let Some(job) = self.jobs.pop_front() {
            return Some(ThreadTask::Job(job));
        }
        let lot = self.lots.front_mut()?;
        lot.len -= 1;
        let (out, is_last) = (Arc::clone(&lot.out), lot.len == 0);
        if is_last {
            self.lots.pop_front();
        }
        Some(ThreadTask::Discard(out))
    }

    fn put_away(&mut self, socket: &Socket) -> io::Result<()> {
        if let Some(lot) = self.lots.back_mut()
            && lot.add(socket).is_ok()
        {
            return Ok(());
        }
        let mut lot = Lot::new()?;
        lot.add(socket)?;
        self.lots.push_back(lot);
        Ok(())
    }
}

impl Lot {
    fn new() -> io::Result<Self> {
        let (into, out) = Socket::pair()?;
        into.set_most_send_room()?;
        Ok(Self { into, out: Arc::new(out), len: 0 })
    }

    fn add(&mut self, socket: &Socket) -> io::Result<()> {
        self.into.try_send(b"x", &[socket.as_fd()])?;
        self.len += 1;
        Ok(())
    }
}

impl fmt::Debug for UserThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserThread").field("uid", &self.uid).field("waiting", &self.work.lock().waiting).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account;
    use std::sync::mpsc::channel;

    /// If the log lines of a closer thread counted for no user, they would crowd out other lines.
    #[test]
    fn log_lines_of_a_closer_thread_count_for_its_user() {
        let mut closers = Closers::threads(|_| {}, 4);
        let (socket, other) = Socket::pair().expect("sockets");
        other.send(b"x", &[]).expect("sent");
        let socket = Arc::new(Foreign::new(socket, closers.of(77)));
        let (told, user) = channel();
        closers.of(77).receive(&socket, move |_| told.send(account::current()).expect("it is waited for"));
        assert_eq!(user.recv_timeout(Duration::from_secs(30)), Ok(Some(77)));
    }
}
