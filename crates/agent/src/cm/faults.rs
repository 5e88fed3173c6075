//! Faults of the connection manager: requests that are rejected or vanish, and datagrams that do.
//!
//! A request of a program here meets its faults where it leaves, by the QP that it names; one of another host where it comes in. Adds to
//! [`Manager`].

use abi::fault::{Direction, Facts, Fate};
use protocol::cm::{Mad, Origin, Path};
use wire::Qpn;
use wire::cm::{Message, Reason, Rej, Req};

use super::Manager;
use super::management::{Arrived, Told};
use crate::context::ContextId;
use crate::faults::{Asked, By};
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
    pub(super) fn send_with_faults(&mut self, world: &World, path: &Path, mad: &Mad, owner: u32) {
        let facts = facts(Direction::Out, path.dgid);
        if let Ok((header, Message::Req(req))) = Message::parse(mad) {
            let of = ContextId(
                world
                    .board
                    .view()
                    .word(abi::board::owner(req.local_qpn.value()))
                    .load(std::sync::atomic::Ordering::Acquire),
            );
            let asked = world.contexts.get(&of).and_then(|context| world.faults.check_request(Some(context), &facts));
            if let Some((asked, By { words, .. })) = asked {
                let told = Told { owner, words: &words };
                self.show_lost(path, mad, &told);
                if let Asked::Rejected(reason) = asked {
                    let back = Origin {
                        source: path.dgid,
                        destination: path.sgid,
                        pkey: path.pkey,
                        hop_limit: path.hop_limit,
                        ..Origin::default()
                    };
                    self.pass(back, &rejection(header.transaction, &req, reason), &told);
                }
                return;
            }
        }
        match world.faults.check_datagram(&facts) {
            Some((Fate::Lost | Fate::Damaged(_), By { words, .. })) => {
                self.show_lost(path, mad, &Told { owner, words: &words });
            }
            Some((Fate::Twice, By { words, .. })) => {
                self.send(path, mad, &Told { owner, words: &words });
                self.send(path, mad, &Told { owner, words: "" });
            }
            _ => self.send(path, mad, &Told { owner, words: "" }),
        }
    }

    /// Whether a datagram of another host goes no further. A request that is rejected is answered.
    #[cold]
    pub(super) fn meets_fault_coming(&mut self, world: &World, origin: &Origin, arrived: &Arrived) -> bool {
        let facts = facts(Direction::In, origin.source);
        if let Ok((header, Message::Req(req))) = Message::parse(&arrived.mad)
            && let Some((asked, by)) = world.faults.check_request(None, &facts)
        {
            self.show_drop(origin, arrived, by.rule);
            if let Asked::Rejected(reason) = asked {
                let told = Told { owner: 0, words: &by.words };
                self.send(&origin.back(), &rejection(header.transaction, &req, reason), &told);
            }
            return true;
        }
        match world.faults.check_datagram(&facts) {
            Some((Fate::Lost | Fate::Damaged(_), by)) => {
                self.show_drop(origin, arrived, by.rule);
                true
            }
            _ => false,
        }
    }
}
