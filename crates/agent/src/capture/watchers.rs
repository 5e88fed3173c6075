//! The captures of the agent's own datagrams, which are those of the connection manager. Root and
//! the agent's own user see all of them. Other users see those of their own ids. The principal type
//! is [`Watchers`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::capture::CaptureRecord;
use abi::private::LaneOut;
use abi::reason::{Cause, DropRecord};
use engine::capture::CaptureHook;
use parking_lot::Mutex;

use crate::asker::Asker;

/// The capture hooks, shared by the captures and by the code that shows packets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watchers {
    /// The capture hook of users who see everything.
    root: Arc<CaptureHook>,
    users: Arc<UserHooks>,
}

#[derive(Debug, Default)]
struct UserHooks {
    is_on: AtomicBool,
    hooks: Mutex<BTreeMap<u32, Arc<CaptureHook>>>,
}

impl Watchers {
    /// The capture hook of users who see everything.
    pub(crate) fn root(&self) -> &Arc<CaptureHook> {
        &self.root
    }

    /// Whether there are captures.
    pub(crate) fn are_there(&self) -> bool {
        self.root.is_on() || self.have_users()
    }

    /// Whether there are captures of users who see only their own datagrams.
    pub(crate) fn have_users(&self) -> bool {
        self.users.is_on.load(Ordering::Relaxed)
    }

    /// Starts a capture.
    pub(crate) fn begin(&self, asker: Asker, wanted: &LaneOut, ring: &OwnedFd) -> io::Result<()> {
        let hook = match asker {
            Asker::Root => Arc::clone(&self.root),
            Asker::User(uid) => Arc::clone(self.users.hooks.lock().entry(uid).or_default()),
        };
        hook.begin(wanted, ring)?;
        if asker != Asker::Root {
            self.users.is_on.store(true, Ordering::Relaxed);
        }
        hook.attach(wanted.lane);
        Ok(())
    }

    /// Ends a capture.
    pub(crate) fn end(&self, asker: Asker, number: u32) {
        let Asker::User(uid) = asker else { return self.root.end(number) };
        let mut hooks = self.users.hooks.lock();
        if let Some(hook) = hooks.get(&uid) {
            hook.end(number);
        }
        hooks.retain(|_, hook| hook.is_on());
        self.users.is_on.store(!hooks.is_empty(), Ordering::Relaxed);
    }

    /// Shows a packet to users who see everything.
    pub(crate) fn show_root(&self, about: &CaptureRecord, packet: &[u8], words: &str) {
        if self.root.is_on() {
            self.root.packet(about, packet, words);
        }
    }

    /// Shows a packet to its owner; 0 means that it has none.
    pub(crate) fn show_user(&self, user: u32, about: &CaptureRecord, packet: &[u8], words: &str) {
        if let Some(hook) = self.hook_of(user) {
            hook.packet(about, packet, words);
        }
    }

    /// Tells captures that a packet of this user, which was shown before, was dropped.
    pub(crate) fn show_drop(&self, user: u32, cause: Cause, dropped: &DropRecord) {
        for hook in self.hook_of(user).iter().chain([&self.root]) {
            hook.dropped(cause, dropped);
        }
    }

    fn hook_of(&self, user: u32) -> Option<Arc<CaptureHook>> {
        if user == 0 || !self.have_users() {
            return None;
        }
        self.users.hooks.lock().get(&user).cloned()
    }
}
