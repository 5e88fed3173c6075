//! The commands, one file per kind of object: they make, change, query and destroy it. What the agent keeps of each is in
//! [`crate::objects`].
//!
//! Each command is a function from the world and a [`Call`] to an [`Answer`]; [`crate::dispatch`] picks it. A command that
//! is refused has changed nothing. An object that others refer to counts them, and its destroy answers EBUSY until they
//! are gone.

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
pub mod pd;
pub mod qp;
pub mod qp_modify;
pub mod srq;
pub mod target;
pub mod wire;
pub mod xrc;

use std::os::fd::OwnedFd;

use abi::Errno;
use abi::command::Command;
use abi::layout::Record;

use crate::foreign::Passed;
use crate::ids::ContextId;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::table::{Kind, Table};

/// One admitted command.
pub struct Call<'a> {
    /// Whose it is.
    pub context: ContextId,
    /// Its header is sound, its body long enough and its room for the answer large enough.
    pub command: Command<'a>,
    /// The descriptors that came with it.
    pub fds: Vec<Passed>,
}

/// The answer to a command that was carried out.
#[derive(Debug, Default)]
pub struct Answer {
    /// What a kernel would have copied out.
    pub bytes: Vec<u8>,
    /// The descriptors that go with it.
    pub fds: Vec<OwnedFd>,
}

impl Call<'_> {
    /// The body of a command that has nothing after it, or nothing that matters: in a legacy command that is the private
    /// tail of a provider, which is not ours to judge; in an extended one, what is unknown must be zero.
    pub fn body<T: Record>(&self) -> Outcome<T> {
        let body = if self.command.is_extended() {
            self.command.body()
        } else {
            self.command.body_and_tail().map(|(body, _)| body)
        };
        body.map_err(|errno| self.malformed(errno))
    }

    /// The body and what follows it.
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

/// The object that a handle names, for its owner. When it names none, that is ENOENT as in a kernel, where completion channels are
/// descriptors and so EBADF.
pub fn find<T>(table: &Table<T>, owner: ContextId, handle: u32, kind: Kind) -> Outcome<&T> {
    table.find(owner, handle).map_or_else(|| no_such(kind, handle), Ok)
}

/// The same, to change it.
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

/// Refuses to destroy what is in use.
pub fn unused(users: u32, what: &str, by: &str) -> Outcome<()> {
    if users == 0 {
        return Ok(());
    }
    refuse(Errno::EBUSY, format!("{what} is still used by {users} {by}; destroy those first"))
}
