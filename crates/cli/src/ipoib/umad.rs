//! A file of management datagrams that is registered for questions to subnet administration. It
//! knows nothing of what they say. The principal type is [`File`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use abi::umad::{RegisterAgent2, UserMad};
use wire::mad::{CLASS_SA, GSI_QKEY, Mad};

use crate::umad_number::number;

/// How long an answer may take, and how often the agent sends again.
const ANSWER_MS: u32 = 500;
const RETRIES: u32 = 5;

/// An open file.
pub(crate) struct File {
    file: umad::File,
    agent: u32,
}

/// A datagram that has come back.
pub(crate) enum Arrived {
    /// An answer.
    Answer(Box<Mad>),
    /// Nobody has answered the request with this transaction.
    TimedOut(u64),
}

impl File {
    /// Opens the file of a port.
    ///
    /// # Errors
    /// EACCES if this user may not.
    pub(crate) fn open(run_dir: &Path, device: &str, port: u8) -> io::Result<Self> {
        let file = umad::File::open(run_dir, number(run_dir, Some(device), port)?.0)?;
        let agent = file.register(&RegisterAgent2 {
            qpn: 1,
            mgmt_class: CLASS_SA,
            mgmt_class_version: wire::sa::CLASS_VERSION,
            rmpp_version: 1,
            ..RegisterAgent2::default()
        })?;
        Ok(Self { file, agent })
    }

    /// Sends a request to QP 1 of a LID.
    pub(crate) fn send(&self, lid: u16, sl: u8, mad: &Mad) -> io::Result<()> {
        let header = UserMad {
            id: self.agent,
            timeout_ms: ANSWER_MS,
            retries: RETRIES,
            qpn: 1_u32.to_be(),
            qkey: GSI_QKEY.to_be(),
            lid: lid.to_be(),
            sl,
            ..UserMad::default()
        };
        self.file.write(&header, mad)
    }

    /// The next datagram that has arrived.
    pub(crate) fn next(&self) -> io::Result<Option<Arrived>> {
        Ok(self.file.next()?.map(|(header, mad)| match header.status {
            0 => Arrived::Answer(mad),
            _ => Arrived::TimedOut(wire::mad::Header::of(&mad).transaction),
        }))
    }
}

/// Readable when a datagram has arrived.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
