//! Translates events of the connection protocol into events of the node. IBA 12.9.8;
//! rdma_get_cm_event(3).

use abi::Errno;
use abi::ucma::connection::{ConnParam, Ece as EceRecord, EventAnswer, UdParam, event};
use protocol::cm::{Attribute, Ece, Event as News, Kind, Reason};
use wire::cm::{Rej, Rep, SidrRep, SidrStatus};

use super::Manager;
use super::attributes::vector;
use super::before_listen::Ask;
use super::channel::Event;
use super::id::{Id, Stage};
use super::incoming::padded;
use crate::gids::ip_of;
use crate::world::World;

impl Manager {
    /// Handles one event of the protocol.
    pub(super) fn on_news(&mut self, _world: &World, news: News) {
        match &news.kind {
            Kind::Incoming { req, ece, .. } => return self.on_ask(news.id, &Ask::Connection(*req, *ece)),
            Kind::SidrIncoming { req, origin } => return self.on_ask(news.id, &Ask::Question(*req, *origin)),
            _ => {}
        }
        let Some(name) = self.connections.get(&news.id).copied() else { return self.forget_early(news.id) };
        match news.kind {
            Kind::Agreed { rep, ece } => self.on_reply(name, &rep, ece),
            Kind::Established { private_data } => {
                self.on_established(name, private_data.as_ref().map(|data| &data[..]))
            }
            Kind::Rejected(rej) => self.on_rejected(name, &rej),
            Kind::PeerForgot => self.on_forgotten(name),
            Kind::TimedOut { message } => self.on_silence(name, message),
            Kind::DisconnectWanted(_) | Kind::Disconnected { .. } => self.over(name, 0, String::new()),
            Kind::Rested => self.tell(name, event::TIMEWAIT_EXIT, 0, UdParam::default(), String::new()),
            Kind::SidrAnswered { rep, .. } => self.on_answer(name, &rep),
            // `Later` changes nothing for a program. softhca neither suggests nor accepts alternate
            // paths for an established connection, and no event reports them.
            Kind::PathSuggested(_) => self.decline_path(news.id),
            Kind::Later(_) | Kind::PathAnswered(_) | Kind::Incoming { .. } | Kind::SidrIncoming { .. } => {}
        }
    }

    fn on_reply(&mut self, name: u32, rep: &Rep, ece: Ece) {
        let Some(id) = self.ids.get(name).filter(|id| id.stage == Stage::Connecting) else { return };
        let param = ConnParam {
            qp_num: rep.local_qpn.value(),
            private_data: padded(rep.private_data.as_slice()),
            private_data_len: rep.private_data.len() as u8,
            srq: u8::from(rep.srq),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: u8::from(rep.flow_control),
            rnr_retry_count: rep.rnr_retry_count,
            ..ConnParam::default()
        };
        let answer = EventAnswer {
            uid: id.uid,
            id: name,
            event: event::CONNECT_RESPONSE,
            param: UdParam::from_conn(&param),
            ece: EceRecord { vendor_id: ece.vendor_id, attr_mod: ece.options },
            ..EventAnswer::default()
        };
        self.queue(name, Event { answer, id: name, member: None, request: None, sentence: String::new() });
    }

    pub(super) fn on_established(&mut self, name: u32, private: Option<&[u8]>) {
        let Some(id) = self.ids.get_mut(name) else { return };
        id.established = true;
        let private = private.filter(|data| data.iter().any(|byte| *byte != 0)).unwrap_or_default();
        let param =
            ConnParam { private_data: padded(private), private_data_len: private.len() as u8, ..ConnParam::default() };
        self.tell(name, event::ESTABLISHED, 0, UdParam::from_conn(&param), String::new());
    }

    fn on_rejected(&mut self, name: u32, rej: &Rej) {
        let Some(id) = self.ids.get_mut(name) else { return };
        let peer = peer_of(id);
        if id.established {
            let text = format!("{peer} has ended the connection by rejecting it: {}", rej.reason);
            return self.over(name, 0, text);
        }
        id.stage = Stage::Over;
        let param = ConnParam {
            private_data: padded(rej.private_data.as_slice()),
            private_data_len: rej.private_data.len() as u8,
            ..ConnParam::default()
        };
        let text = format!("{peer} rejects the connection: {}", rej.reason);
        self.tell(name, event::REJECTED, i32::from(rej.reason.0), UdParam::from_conn(&param), text);
    }

    /// The peer sent a new request with the same QP, so it has forgotten its old connection.
    fn on_forgotten(&mut self, name: u32) {
        let Some(id) = self.ids.get_mut(name) else { return };
        let peer = peer_of(id);
        if id.established {
            let text = format!("{peer} has forgotten the connection: its QP asked for another one");
            return self.over(name, 0, text);
        }
        id.stage = Stage::Over;
        let text = format!("{peer} has forgotten its request: its QP asked for another connection");
        let status = i32::from(Reason::STALE_CONNECTION.0);
        self.tell(name, event::CONNECT_ERROR, status, UdParam::default(), text);
    }

    /// The peer does not answer.
    fn on_silence(&mut self, name: u32, message: Attribute) {
        let Some(id) = self.ids.get_mut(name) else { return };
        let peer = peer_of(id);
        let status = Errno::ETIMEDOUT.to_status();
        match message {
            Attribute::Dreq => {
                self.over(name, status, format!("{peer} does not answer the end of the connection; it has ended here"));
            }
            Attribute::Req | Attribute::Rep | Attribute::SidrReq => {
                id.stage = Stage::Over;
                let text = format!("{peer} does not answer: all retries of {message} failed");
                self.tell(name, event::UNREACHABLE, status, UdParam::default(), text);
            }
            _ => {}
        }
    }

    /// Ends a connection, and tells the program once.
    pub(super) fn over(&mut self, name: u32, status: i32, sentence: String) {
        let Some(id) = self.ids.get_mut(name) else { return };
        if id.stage == Stage::Connecting {
            id.stage = Stage::Over;
            self.tell(name, event::DISCONNECTED, status, UdParam::default(), sentence);
        }
    }

    fn on_answer(&mut self, name: u32, rep: &SidrRep) {
        let Some(id) = self.ids.get_mut(name).filter(|id| id.stage == Stage::Connecting) else { return };
        let (peer, at, path) = (peer_of(id), id.attachment, id.path);
        let mut param = UdParam {
            private_data: padded(rep.private_data.as_slice()),
            private_data_len: rep.private_data.len() as u8,
            ..UdParam::default()
        };
        if rep.status != SidrStatus::OK {
            id.stage = Stage::Over;
            let text = format!("{peer} has no QP for this: {}", sidr_text(rep.status));
            return self.tell(name, event::UNREACHABLE, i32::from(rep.status.0), param, text);
        }
        (param.qp_num, param.qkey) = (rep.qpn.value(), rep.qkey);
        if let (Some(at), Some(path)) = (at, path) {
            param.ah_attr = vector(&path, &at);
        }
        id.established = true;
        id.qkey = rep.qkey;
        self.tell(name, event::ESTABLISHED, 0, param, String::new());
    }

    /// Declines an alternate path. Programs have no call and no event for alternate paths of an
    /// established connection. Linux's connection manager accepts such a suggestion for a program's
    /// id and never answers it; on Ethernet ports it drops the suggestion. There the peer waits
    /// until its retries are used up. The IBA has an answer for this case (12.8), and softhca sends
    /// it.
    fn decline_path(&mut self, connection: protocol::cm::Id) {
        if let Err(error) = self.core.answer_path(connection, wire::cm::AprStatus::UNSUPPORTED, &[], &[]) {
            tracing::debug!(%error, "the suggestion of a path could not be declined");
        }
    }
}

/// Names the peer in a sentence.
fn peer_of(id: &Id) -> String {
    match (&id.remote, &id.target) {
        (Some(remote), _) => remote.to_string(),
        (None, Some(gid)) => ip_of(gid).to_string(),
        (None, None) => "the peer".to_owned(),
    }
}

fn sidr_text(status: SidrStatus) -> String {
    match status {
        SidrStatus::UNSUPPORTED => "nobody listens at this service id (status 1)".to_owned(),
        SidrStatus::REJECTED => "the program, or its full backlog, declined (status 2)".to_owned(),
        SidrStatus::NO_QP => "no QP is available (status 3)".to_owned(),
        SidrStatus(other) => format!("status {other}"),
    }
}
