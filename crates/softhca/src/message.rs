//! Messages: parts of memory, and a message made of parts and flags. Principal types: [`Part`],
//! [`Message`].

use std::ops::RangeBounds;

use abi::post::Sge;

use crate::memory::{Buffer, Exposed};
use crate::range::inside;

/// A part of a [`Buffer`] or of [`Exposed`] memory, as one element of a request.
#[derive(Debug)]
pub struct Part {
    memory: PartMemory,
    at: usize,
    len: usize,
}

#[derive(Debug)]
enum PartMemory {
    Owned(Buffer),
    Shared(Exposed),
}

impl Part {
    pub(crate) fn of(buffer: Buffer, at: usize, len: usize) -> Self {
        Self { memory: PartMemory::Owned(buffer), at, len }
    }

    pub(crate) fn shared(memory: Exposed, at: usize, len: usize) -> Self {
        Self { memory: PartMemory::Shared(memory), at, len }
    }

    /// Offset of the part in its buffer.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn sge(&self) -> Sge {
        match &self.memory {
            PartMemory::Owned(buffer) => buffer.sge(self.at, self.len),
            PartMemory::Shared(exposed) => exposed.sge(self.at, self.len),
        }
    }

    pub(crate) fn owned(&self) -> Option<&Buffer> {
        match &self.memory {
            PartMemory::Owned(buffer) => Some(buffer),
            PartMemory::Shared(_) => None,
        }
    }

    /// Copies `into.len()` bytes from the beginning of the part; `None` when the part is shorter.
    pub(crate) fn head(&self, into: &mut [u8]) -> Option<()> {
        if self.len < into.len() {
            return None;
        }
        match &self.memory {
            PartMemory::Owned(buffer) => into.copy_from_slice(&buffer[self.at..self.at + into.len()]),
            PartMemory::Shared(exposed) => exposed.read(self.at, into),
        }
        Some(())
    }

    fn into_buffer(self) -> Option<Buffer> {
        match self.memory {
            PartMemory::Owned(buffer) => Some(buffer),
            PartMemory::Shared(_) => None,
        }
    }
}

impl Buffer {
    /// A part of the buffer, to post. The completion gives back the whole buffer.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn part(self, range: impl RangeBounds<usize>) -> Part {
        let (at, len) = inside(range, self.len());
        Part::of(self, at, len)
    }
}

impl Exposed {
    /// A part of the memory, to send from or to receive or read into.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn part(&self, range: impl RangeBounds<usize>) -> Part {
        let (at, len) = inside(range, self.len());
        Part::shared(self.clone(), at, len)
    }
}

impl From<Buffer> for Part {
    fn from(buffer: Buffer) -> Self {
        let len = buffer.len();
        Self::of(buffer, 0, len)
    }
}

/// The parts of one request; usually one.
#[derive(Debug, Default)]
pub(crate) enum Parts {
    #[default]
    None,
    One(Part),
    Many(Vec<Part>),
}

impl Parts {
    pub(crate) fn as_slice(&self) -> &[Part] {
        match self {
            Self::None => &[],
            Self::One(part) => std::slice::from_ref(part),
            Self::Many(parts) => parts,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.as_slice().iter().map(|part| part.len() as u64).sum()
    }

    pub(crate) fn move_to(self, list: &mut Vec<Part>) {
        match self {
            Self::None => {}
            Self::One(part) => list.push(part),
            Self::Many(parts) => list.extend(parts),
        }
    }

    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        match self {
            Self::None => Vec::new(),
            Self::One(part) => part.into_buffer().into_iter().collect(),
            Self::Many(parts) => parts.into_iter().filter_map(Part::into_buffer).collect(),
        }
    }

    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::None => None,
            Self::One(part) => part.into_buffer(),
            Self::Many(parts) => parts.into_iter().find_map(Part::into_buffer),
        }
    }
}

/// What a send or write transfers: its parts, in order, and optionally immediate data and flags. A
/// [`Buffer`], a [`Part`] and a list of parts convert to a message.
///
/// ```no_run
/// # fn example(qp: softhca::Qp<softhca::Reliable>, head: softhca::Buffer, body: softhca::Buffer)
/// #     -> softhca::Result<()> {
/// use softhca::Message;
/// qp.send(1, Message::from(vec![head.into(), body.part(..100)]).immediate(7).solicited())?;
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct Message {
    pub(crate) parts: Parts,
    pub(crate) immediate: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) fenced: bool,
}

impl Message {
    /// A message without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Adds immediate data, which the receiver's completion shows.
    #[must_use]
    pub fn immediate(self, number: u32) -> Self {
        Self { immediate: Some(number), ..self }
    }

    /// Marks the message as solicited: it wakes a receiver that armed its CQ for solicited
    /// completions only.
    #[must_use]
    pub fn solicited(self) -> Self {
        Self { solicited: true, ..self }
    }

    /// Makes the message wait for the READs and atomics before it.
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { fenced: true, ..self }
    }
}

impl From<Buffer> for Message {
    fn from(buffer: Buffer) -> Self {
        Part::from(buffer).into()
    }
}

impl From<Part> for Message {
    fn from(part: Part) -> Self {
        Self { parts: Parts::One(part), ..Self::default() }
    }
}

impl From<Vec<Part>> for Message {
    fn from(parts: Vec<Part>) -> Self {
        Self { parts: Parts::Many(parts), ..Self::default() }
    }
}
