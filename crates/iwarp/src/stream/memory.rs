//! What a stream asks of its owner: the accesses to memory, with all checks of keys and rights. The
//! stream itself never sees an address of the program. Principal types: [`Memory`], [`Fault`].

use crate::ddp::Stag;
use crate::rdmap::Atomic;
use crate::stream::event::Status;
use crate::terminate::Reason;
use wire::icrc::Folding;

/// Why the owner refuses an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The STag names no region.
    Stag,
    /// The access leaves the region.
    Bounds,
    /// The region does not allow this kind of access.
    Access,
    /// The region does not belong to this stream.
    Stream,
    /// The STag cannot be invalidated.
    Invalidate,
    /// The program's own buffer is not there, or not allowed.
    Local,
    /// An atomic of a misaligned target, or one that the owner does not have.
    Unsupported,
}

impl Fault {
    /// The reason for a segment with tagged data. DDP has no code for missing rights.
    pub(crate) const fn tagged(self) -> Reason {
        match self {
            Fault::Bounds => Reason::TaggedBounds,
            Fault::Stream => Reason::TaggedStream,
            _ => Reason::TaggedStag,
        }
    }

    /// The reason for a request: a READ, an atomic or an invalidation.
    pub(crate) const fn request(self) -> Reason {
        match self {
            Fault::Stag => Reason::ProtectionStag,
            Fault::Bounds => Reason::ProtectionBounds,
            Fault::Access => Reason::ProtectionAccess,
            Fault::Stream => Reason::ProtectionStream,
            Fault::Invalidate => Reason::ProtectionInvalidate,
            Fault::Local => Reason::RdmapCatastrophic,
            Fault::Unsupported => Reason::RdmapUnspecified,
        }
    }

    /// The status of a work request that this fault ends on the side of the program.
    pub(crate) const fn local(self) -> Status {
        match self {
            Fault::Local => Status::LocalProtection,
            Fault::Invalidate => Status::MemoryManagement,
            _ => Status::General,
        }
    }
}

/// A receive request of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The owner's number, for [`Memory::fill`] and the event.
    pub id: u64,
    /// The bytes that its buffers hold.
    pub len: u32,
}

/// The owner of a stream, while the stream works. A call with data never has an empty slice.
pub trait Memory {
    /// Copies a piece of a work request's data to `out`. May also fold it into `folding`; returns
    /// whether it did. With a `folding`, `out` is whole strides.
    ///
    /// # Errors
    /// The program's buffer is not there.
    fn gather(&mut self, work: u64, offset: u32, out: &mut [u8], folding: Option<&mut Folding>) -> Result<bool, Fault>;

    /// Copies a piece of a READ's data, or the result of an atomic in the host's byte order, to the
    /// buffers of the work request.
    ///
    /// # Errors
    /// The program's buffer is not there.
    fn scatter(&mut self, work: u64, offset: u32, data: &[u8]) -> Result<(), Fault>;

    /// Carries out a work request that does not leave this host: an invalidation, a bind.
    ///
    /// # Errors
    /// It cannot be carried out; the stream ends.
    fn execute(&mut self, work: u64) -> Result<(), Fault>;

    /// The next receive request, from the queue of the QP or from a shared one.
    fn take_receive(&mut self) -> Option<Receive>;

    /// Copies a piece of a SEND to the buffers of a receive request. It fits.
    ///
    /// # Errors
    /// The program's buffer is not there.
    fn fill(&mut self, receive: u64, offset: u32, data: &[u8]) -> Result<(), Fault>;

    /// Writes data of the peer's WRITE to a region, if the peer may. `to` plus the length does not
    /// wrap.
    ///
    /// # Errors
    /// The peer may not.
    fn write(&mut self, stag: Stag, to: u64, data: &[u8]) -> Result<(), Fault>;

    /// Whether the peer may READ these bytes. Each piece is checked again when it is copied.
    ///
    /// # Errors
    /// The peer may not.
    fn readable(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), Fault>;

    /// Copies a piece of what the peer READs to `out`. May also fold it, as [`Memory::gather`].
    ///
    /// # Errors
    /// The peer may not, or not any longer.
    fn read(&mut self, stag: Stag, to: u64, out: &mut [u8], folding: Option<&mut Folding>) -> Result<bool, Fault>;

    /// Carries out the peer's atomic and returns the value before.
    ///
    /// # Errors
    /// The peer may not, or the target is not aligned.
    fn atomic(&mut self, stag: Stag, to: u64, atomic: &Atomic) -> Result<u64, Fault>;

    /// Invalidates a region for the peer's SEND with Invalidate.
    ///
    /// # Errors
    /// It cannot be invalidated.
    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault>;
}
