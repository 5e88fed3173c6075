//! Faults of the connection manager: requests that are rejected or vanish, and datagrams that do.
//!
//! A request of a program here meets its faults where it leaves, by the QP that it names; one of another host where it comes in. Adds to
//! [`Manager`].

use abi::fault::{Direction, Facts, Fate};
use protocol::cm::{Mad, Origin, Path};
use wire::Qpn;
use wire::cm::{Message, Reason, Rej, Req};

use super::Manager;
use crate::context::ContextId;
use crate::faults::Asked;
use crate::world::World;

/// A management datagram is one UD SEND.
const UD_SEND_ONLY: u8 = 0x64;

fn facts(direction: Direction, peer: [u8; 16]) -> Facts {
    let gsi = Qpn::GSI.value();
    Facts {
        direction,
        device: 0,
        port: 1,
        peer,
        qpn: gsi,
        peer_qpn: gsi,
        opcode: UD_SEND_ONLY,
        syndrome: 0,
        len: 256,
        management: true,
    }
}

/// What says no to a request.
fn rejection(transaction: u64, req: &Req, reason: u16) -> Mad {
    let rej = Rej { remote_comm_id: req.local_comm_id, ..Rej::new(Reason(reason)) };
    Message::Rej(rej).emit(transaction, 0)
}

impl Manager {
    /// Sends a datagram, unless a rule has something else with it.
    #[cold]
    pub(super) fn send_with_faults(&mut self, world: &World, path: &Path, mad: &Mad) {
        let facts = facts(Direction::Out, path.dgid);
        if let Ok((header, Message::Req(req))) = Message::parse(mad) {
            let owner = ContextId(
                world
                    .board
                    .view()
                    .word(abi::board::owner(req.local_qpn.value()))
                    .load(std::sync::atomic::Ordering::Acquire),
            );
            match world.contexts.get(&owner).and_then(|context| world.faults.check_request(Some(context), &facts)) {
                None => {}
                Some(Asked::Swallowed) => return,
                Some(Asked::Rejected(reason)) => {
                    let back = Origin {
                        source: path.dgid,
                        destination: path.sgid,
                        pkey: path.pkey,
                        hop_limit: path.hop_limit,
                        ..Origin::default()
                    };
                    self.inner.push_back((back, rejection(header.transaction, &req, reason)));
                    return;
                }
            }
        }
        match world.faults.check_datagram(&facts) {
            Fate::Lost | Fate::Damaged(_) => {}
            Fate::Twice => {
                self.send(path, mad);
                self.send(path, mad);
            }
            _ => self.send(path, mad),
        }
    }

    /// Whether a datagram of another host goes no further. A request that is rejected is answered.
    #[cold]
    pub(super) fn meets_fault_coming(&mut self, world: &World, origin: &Origin, mad: &Mad) -> bool {
        let facts = facts(Direction::In, origin.source);
        if let Ok((header, Message::Req(req))) = Message::parse(mad) {
            match world.faults.check_request(None, &facts) {
                None => {}
                Some(Asked::Swallowed) => return true,
                Some(Asked::Rejected(reason)) => {
                    self.send(&origin.back(), &rejection(header.transaction, &req, reason));
                    return true;
                }
            }
        }
        matches!(world.faults.check_datagram(&facts), Fate::Lost | Fate::Damaged(_))
    }
}
