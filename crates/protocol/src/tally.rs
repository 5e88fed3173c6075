//! Counts of what a queue pair notices and mends. They are no errors, but they explain why a
//! connection is slow. Principal type: [`Tally`].

/// What is counted. The names are those of mlx5's `hw_counters` in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// A request was repeated that had been carried out.
    DuplicateRequest,
    /// An answer arrived before the data of an earlier READ or atomic.
    ImpliedNakSeqErr,
    /// No answer came in time.
    LocalAckTimeoutErr,
    /// A message found no receive request.
    OutOfBuffer,
    /// A request arrived before an earlier one.
    OutOfSequence,
    /// The peer reported a missing packet.
    PacketSeqErr,
    /// The peer had no receive request.
    RnrNakRetryErr,
}

impl Occurrence {
    /// All of them, in their order.
    pub const ALL: [Self; 7] = [
        Self::DuplicateRequest,
        Self::ImpliedNakSeqErr,
        Self::LocalAckTimeoutErr,
        Self::OutOfBuffer,
        Self::OutOfSequence,
        Self::PacketSeqErr,
        Self::RnrNakRetryErr,
    ];
}

/// How often each [`Occurrence`] was noticed since the last [`Tally::take`].
#[derive(Debug, Default)]
pub struct Tally {
    counts: [u32; Occurrence::ALL.len()],
    has_any: bool,
}

impl Tally {
    #[cold]
    pub(crate) fn note(&mut self, occurrence: Occurrence) {
        let count = &mut self.counts[occurrence as usize];
        *count = count.saturating_add(1);
        self.has_any = true;
    }

    /// Whether there is something to take.
    #[inline]
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.has_any
    }

    /// What was noticed, with the count of each.
    pub fn take(&mut self) -> impl Iterator<Item = (Occurrence, u32)> + use<> {
        let counts = std::mem::take(self).counts;
        Occurrence::ALL.into_iter().zip(counts).filter(|(_, count)| *count != 0)
    }
}
