//! Where packets are sent, and the result of sending them. An [`Exit`] is either a lane or the
//! wire. What is sent is in `run.rs`. Principal type: [`Exit`].

use std::sync::Arc;

use crate::access::Refusal;
use crate::cell::Path;
use crate::lane::Sender;
use crate::lock::MutexGuard;
use crate::net::batch::Batch;
use crate::qp::{Flow, Lane, Qp};

/// The result of sending one packet.
pub(crate) enum Sent {
    Yes,
    /// The lane is full.
    Full,
    /// The payload could not be read.
    Refused(Refusal),
}

/// The address and port of the other end, for the fault rules, and what the path has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    pub(crate) gid: [u8; 16],
    pub(crate) port: u32,
    /// The longest payload that passes the links on the path.
    pub(crate) room: u32,
}

/// The lane or the flow over which a connection's packets are sent. `Far` is present only if fault
/// rules or a narrow link may apply.
pub(crate) enum Exit<'a> {
    Lane(&'a Arc<Lane>, MutexGuard<'a, Sender>, Path, Option<Far>),
    Wire(&'a Arc<Flow>, MutexGuard<'a, Batch>, Option<Far>),
}

impl Exit<'_> {
    /// Sends or queues the packets that were put in. Returns whether the peer must be woken.
    pub(crate) fn finish(self, qp: &Arc<Qp>, blocked: bool, sent: bool) -> bool {
        match self {
            Exit::Lane(lane, sender, ..) => {
                if blocked {
                    lane.block(qp, &qp.engine().waker);
                }
                drop(sender);
                sent && lane.peer_needs_wake()
            }
            Exit::Wire(flow, mut batch, _) => {
                if let Err(error) = batch.flush(&*flow.port.outlet) {
                    flow.complain(&error);
                }
                false
            }
        }
    }
}
