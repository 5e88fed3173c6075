//! What a program does with a request or a connection, and what its engine reports: ACCEPT, REJECT,
//! DISCONNECT, the end of an id. Adds to [`Manager`].

use abi::ucma::connection::ConnParam;
use abi::{Errno, Refusal};
use iwarp::Error;

use super::shown::LEAVES;
use super::{End, Key, sockets};
use crate::cm::Manager;
use crate::cm::connecting::given;
use crate::cm::id::Stage;
use crate::refusal::{Outcome, by_system, refuse};
use crate::streams::StreamNews;
use crate::world::World;

impl Manager {
    /// The program accepts a request, or has taken its QP to RTS.
    pub(in crate::cm) fn accept_by_tcp(&mut self, name: u32, param: &ConnParam) -> Outcome<()> {
        let impossible = |error: Error| Refusal::new(Errno::EINVAL, format!("id {name:#x}: {error}"));
        let Some(end) = self.mail.tcp.ends.remove(&name) else {
            return refuse(Errno::EINVAL, format!("id {name:#x} has no request to accept"));
        };
        let End::Asked { socket, mut responder } = end else {
            self.mail.tcp.ends.insert(name, end);
            if param.valid == 0 {
                return Ok(());
            }
            return refuse(Errno::EINVAL, format!("id {name:#x} has no request to accept"));
        };
        let (ird, ord) = (param.responder_resources.into(), param.initiator_depth.into());
        let (reply, agreement) = match responder.accept(ird, ord, given(param)) {
            Ok(agreed) => agreed,
            Err(error) => {
                self.mail.tcp.ends.insert(name, End::Asked { socket, responder });
                return Err(impossible(error));
            }
        };
        sockets::send(&socket, &reply).map_err(by_system)?;
        self.show_frame(name, &socket, LEAVES, &reply);
        if let Some(id) = self.ids.get_mut(name) {
            id.qpn = param.qp_num;
        }
        self.offer(name, param.qp_num, socket, &agreement);
        Ok(())
    }

    /// The program rejects a request.
    pub(in crate::cm) fn reject_by_tcp(&mut self, name: u32, private: &[u8]) -> Outcome<()> {
        match self.mail.tcp.ends.remove(&name) {
            Some(End::Asked { socket, mut responder }) => self.send_away(name, socket, &mut responder, private),
            end => {
                self.mail.tcp.ends.extend(end.map(|end| (name, end)));
                return refuse(Errno::EINVAL, format!("id {name:#x} has nothing to reject"));
            }
        }
        if let Some(id) = self.ids.get_mut(name) {
            id.stage = Stage::Over;
        }
        Ok(())
    }

    /// The program ends a connection. Its engine closes the socket.
    pub(in crate::cm) fn disconnect_by_tcp(&mut self, name: u32) {
        self.close_end(name);
        self.over(name, 0, String::new());
    }

    /// The peer of a request that the program has not decided on has left, or broke the rules.
    pub(super) fn asker_left(&mut self, name: u32) {
        self.close_end(name);
        self.over(name, 0, "the peer has closed the connection before it was accepted".to_owned());
    }

    /// Drops what is held for an id: a request is rejected, everything else is closed.
    pub(in crate::cm) fn close_end(&mut self, name: u32) {
        let tcp = &mut self.mail.tcp;
        let Some(end) = tcp.ends.remove(&name) else { return };
        tcp.deadlines.forget(Key::Id(name));
        match end {
            // Closing a socket ends its watch.
            End::Bound(_) | End::Listening(_) | End::Asking { .. } => {}
            End::Asked { socket, mut responder } => self.send_away(name, socket, &mut responder, &[]),
            End::Agreed { qpn, .. } => {
                // A newer id may have the QP number by now.
                if tcp.by_qpn.get(&qpn) == Some(&name) {
                    tcp.streams.withdraw(qpn);
                    tcp.by_qpn.remove(&qpn);
                }
            }
        }
    }

    /// Tells programs what engines have done with their connections.
    pub(crate) fn follow_streams(&mut self, world: &World) {
        let now = self.now();
        for left in world.wire.streams().take_left() {
            self.mail.tcp.close_left(left, now);
        }
        let news = world.wire.streams().take_news();
        if news.is_empty() {
            return;
        }
        for news in news {
            let (StreamNews::Taken(qpn) | StreamNews::Ended(qpn)) = news;
            let Some(name) = self.mail.tcp.by_qpn.get(&qpn).copied() else { continue };
            match news {
                StreamNews::Taken(_) => {
                    if let Some(End::Agreed { passive: true, .. }) = self.mail.tcp.ends.get(&name) {
                        self.on_established(name, None);
                    } else if let Some(id) = self.ids.get_mut(name) {
                        id.established = true;
                    }
                }
                StreamNews::Ended(_) => {
                    self.close_end(name);
                    self.over(name, 0, "the connection has ended".to_owned());
                }
            }
        }
        self.settle(world);
    }
}
