//! The commands, one file per kind of object: they create, change, query and destroy it.
//! [`crate::objects`] has the records of the objects.
//!
//! Each command is a function from the world and a [`Call`] to an [`Answer`]; [`crate::dispatch`]
//! chooses it. A refused command has changed nothing. An object counts the objects that refer to
//! it. Destroying it answers EBUSY until these are gone.

pub mod ah;
pub mod cq;
pub mod device;
pub mod direct;
pub mod dm;
pub mod engine;
pub mod extended;
pub mod import;
pub mod mcast;
pub mod migration;
pub mod mr;
pub mod mw;
pub mod path;
pub mod pd;
pub mod qp;
pub mod qp_modify;
pub mod resize;
pub mod srq;
pub mod stream;
pub mod target;
pub mod violation;
pub mod wire;
pub mod xrc;

use std::os::fd::OwnedFd;

use abi::command::Command;
use abi::layout::Record;
use abi::{Errno, Refusal};

use crate::foreign::PassedFd;
use crate::ids::ContextId;
use crate::refusal::{Outcome, refuse};
use crate::table::{Kind, Table};

/// One admitted command.
pub struct Call<'a> {
    /// The context that sent it.
    pub context: ContextId,
    /// The command: its header is valid, its body is long enough, and its room for the answer is
    /// large enough.
    pub command: Command<'a>,
    /// The descriptors that came with it.
    pub fds: Vec<PassedFd>,
}

/// The answer to a command.
#[derive(Debug, Default)]
pub struct Answer {
    /// The bytes that a kernel would have copied out.
    pub bytes: Vec<u8>,
    /// The descriptors that go with it.
    pub fds: Vec<OwnedFd>,
}

impl Call<'_> {
    /// The body of a command without a tail, or with an ignored one. The tail of a legacy command
    /// is private to a provider, so the agent ignores it. In an extended command, unknown bytes
    /// must be zero.
    pub fn body<T: Record>(&self) -> Outcome<T> {
        let body = if self.command.is_extended() {
            self.command.body()
        } else {
            self.command.body_and_tail().map(|(body, _)| body)
        };
        body.map_err(|errno| self.malformed(errno))
    }

    /// The body and the bytes after it.
    pub fn body_and_tail<T: Record>(&self) -> Outcome<(T, &[u8])> {
        self.command.body_and_tail().map_err(|errno| self.malformed(errno))
    }

    /// An answer of one record.
    pub fn answer<T: Record>(&self, core: &T) -> Answer {
        Answer { bytes: self.command.reply(core.bytes(), &[]), fds: Vec::new() }
    }

    /// An answer of a record and its private tail, with descriptors.
    pub fn answer_with<T: Record, U: Record>(
        &self,
        core: &T,
        tail: &U,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) -> Answer {
        Answer { bytes: self.command.reply(core.bytes(), tail.bytes()), fds: fds.into_iter().collect() }
    }

    fn malformed(&self, errno: Errno) -> Refusal {
        let what = match errno {
            Errno::EOPNOTSUPP => "has unknown data after its known fields",
            _ => "has a body that is too short",
        };
        Refusal::new(errno, format!("the command {} {what}", self.command.row.name))
    }
}

/// The object of `owner` with this handle. If there is none, the result is ENOENT as in a kernel.
/// For completion channels it is EBADF, because in a kernel they are descriptors.
pub fn find<T>(table: &Table<T>, owner: ContextId, handle: u32, kind: Kind) -> Outcome<&T> {
    table.find(owner, handle).map_or_else(|| no_such(kind, handle), Ok)
}

/// Like [`find`], for a change.
pub fn find_mut<T>(table: &mut Table<T>, owner: ContextId, handle: u32, kind: Kind) -> Outcome<&mut T> {
    table.find_mut(owner, handle).map_or_else(|| no_such(kind, handle), Ok)
}

fn no_such<T>(kind: Kind, handle: u32) -> Outcome<T> {
    refuse(
        if kind == Kind::Channel { Errno::EBADF } else { Errno::ENOENT },
        format!(
            "handle {handle:#x} is not a valid {kind} of this context; it may be destroyed or belong to another context"
        ),
    )
}

/// Refuses to destroy an object that is in use.
pub fn unused(users: u32, what: &str, by: &str) -> Outcome<()> {
    if users == 0 {
        return Ok(());
    }
    refuse(Errno::EBUSY, format!("{what} is still used by {users} {by}; destroy those first"))
}
