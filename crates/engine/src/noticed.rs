//! What both halves of a queue pair notice and mend, for the `hw_counters` of its port. Adds to
//! [`Qp`].

use abi::queue::hw_counter;
use protocol::Occurrence;

use crate::qp::{Inner, Qp};

impl Qp {
    /// Adds what both halves have noticed to the counters of the port.
    #[cold]
    pub(crate) fn count_noticed(&self, inner: &mut Inner) {
        let port = inner.attributes.port_num;
        for (occurrence, count) in inner.requester.tally.take().chain(inner.responder.tally.take()) {
            let counter = match occurrence {
                Occurrence::DuplicateRequest => hw_counter::DUPLICATE_REQUEST,
                Occurrence::ImpliedNakSeqErr => hw_counter::IMPLIED_NAK_SEQ_ERR,
                Occurrence::LocalAckTimeoutErr => hw_counter::LOCAL_ACK_TIMEOUT_ERR,
                Occurrence::OutOfBuffer => hw_counter::OUT_OF_BUFFER,
                Occurrence::OutOfSequence => hw_counter::OUT_OF_SEQUENCE,
                Occurrence::PacketSeqErr => hw_counter::PACKET_SEQ_ERR,
                Occurrence::RnrNakRetryErr => hw_counter::RNR_NAK_RETRY_ERR,
            };
            self.engine().events.count(counter, port, count);
        }
    }
}
