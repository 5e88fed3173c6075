//! Faults of the connection manager. Rules reject or drop requests, and drop, duplicate or delay
//! datagrams ([`super::delayed_datagrams`]).
//!
//! A request of a local program meets the rules when it is sent, by the QP that it names. A request
//! of another host meets them when it arrives. Adds to [`Manager`].

use abi::fault::{Direction, Facts, Fate};
use protocol::Time;
use protocol::cm::{Mad, Origin, Path};
use wire::Qpn;
use wire::cm::{Message, Reason, Rej, Req};

use super::Manager;
use super::delayed_datagrams::DelayedDatagram;
use crate::faults::{By, RequestFault};
use crate::ids::ContextId;
use crate::management::{CaptureNote, ReceivedMad};
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
        links: 0,
    }
}

/// The REJ that rejects a request.
fn rejection(transaction: u64, req: &Req, reason: u16) -> Mad {
    let rej = Rej { remote_comm_id: req.local_comm_id, ..Rej::new(Reason(reason)) };
    Message::Rej(rej).emit(transaction, 0)
}

impl Manager {
    /// Sends a datagram, unless a rule decides otherwise.
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
                let told = CaptureNote { owner, words: &words };
                self.show_lost(path, mad, &told);
                if let RequestFault::Rejected(reason) = asked {
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
        let now = self.now();
        let Some((fate, until, By { words, .. })) = world.faults.check_datagram(&facts, now.0) else {
            self.send(path, mad, &CaptureNote { owner, words: "" });
            return self.delayed.pass(now, true);
        };
        let until = until.map(Time).filter(|until| *until > now);
        let wait =
            |words: &str| DelayedDatagram::Out { path: *path, mad: Box::new(*mad), owner, words: words.to_owned() };
        match fate {
            Fate::Lost | Fate::Damaged(_) => self.show_lost(path, mad, &CaptureNote { owner, words: &words }),
            Fate::Good | Fate::Ghost | Fate::Twice if until.is_none() => {
                self.send(path, mad, &CaptureNote { owner, words: &words });
                if fate == Fate::Twice {
                    self.send(path, mad, &CaptureNote { owner, words: "" });
                }
                self.delayed.pass(now, true);
            }
            _ => {
                let overtaken = fate == Fate::Late;
                if !self.delayed.keep(now, until, overtaken, wait(&words)) {
                    self.show_lost(path, mad, &CaptureNote { owner, words: &words });
                } else if fate == Fate::Twice {
                    // Without room for the duplicate, only the duplicate is lost.
                    let _ = self.delayed.keep(now, until, overtaken, wait(""));
                }
            }
        }
    }

    /// Sends or delivers the first datagram that is due. Returns false if there is none.
    #[cold]
    pub(super) fn bring_delayed(&mut self) -> bool {
        match self.delayed.take(self.now()) {
            None => return false,
            Some(DelayedDatagram::Out { path, mad, owner, words }) => {
                self.send(&path, &mad, &CaptureNote { owner, words: &words })
            }
            Some(DelayedDatagram::In { origin, arrived }) => {
                let watched = self.watch(&origin, &arrived.mad);
                self.deliver(&origin, &arrived.mad);
                self.show_arrived(watched, &origin, &arrived);
            }
        }
        true
    }

    /// Whether a rule stops a datagram of another host. A rejected request is answered.
    #[cold]
    pub(super) fn meets_fault_coming(&mut self, world: &World, origin: &Origin, arrived: &ReceivedMad) -> bool {
        let facts = facts(Direction::In, origin.source);
        if let Ok((header, Message::Req(req))) = Message::parse(&arrived.mad)
            && let Some((asked, by)) = world.faults.check_request(None, &facts)
        {
            self.show_drop(origin, arrived, by.rule);
            if let RequestFault::Rejected(reason) = asked {
                let told = CaptureNote { owner: 0, words: &by.words };
                self.send(&origin.back(), &rejection(header.transaction, &req, reason), &told);
            }
            return true;
        }
        let now = self.now();
        let Some((fate, until, by)) = world.faults.check_datagram(&facts, now.0) else {
            self.delayed.pass(now, false);
            return false;
        };
        let until = until.map(Time).filter(|until| *until > now);
        let wait = || DelayedDatagram::In { origin: *origin, arrived: Box::new(arrived.clone()) };
        match fate {
            Fate::Lost | Fate::Damaged(_) => self.show_drop(origin, arrived, by.rule),
            Fate::Good | Fate::Ghost | Fate::Twice if until.is_none() => {
                self.delayed.pass(now, false);
                if fate == Fate::Twice {
                    self.deliver(origin, &arrived.mad);
                }
                return false;
            }
            _ => {
                let overtaken = fate == Fate::Late;
                if !self.delayed.keep(now, until, overtaken, wait()) {
                    self.show_drop(origin, arrived, by.rule);
                } else if fate == Fate::Twice {
                    let _ = self.delayed.keep(now, until, overtaken, wait());
                }
            }
        }
        true
    }
}
