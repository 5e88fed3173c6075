//! Subscriptions to notices. Not how reports are sent. Principal type: [`Subscriptions`].

use super::request::{Answer, Peer, Refusal, SaRequest};
use crate::inventory::PortId;
use wire::notice::{InformInfo, Notice};
use wire::sa::{InformInfoRecord, STATUS_INVALID_REQUEST, STATUS_NO_RESOURCES};

/// The most subscriptions of all ports.
const MOST: usize = 4096;
/// The most subscriptions of one port.
const MOST_OF_PORT: usize = 64;
/// Notices from this number on are matters of security.
const FIRST_OF_SECURITY: u16 = 256;

#[derive(Clone, Debug)]
struct Subscription {
    peer: Peer,
    port: PortId,
    trusted: bool,
    info: InformInfo,
}

/// All subscriptions.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscriptions {
    all: Vec<Subscription>,
}

fn same(one: &InformInfo, other: &InformInfo) -> bool {
    let plain = |info: &InformInfo| InformInfo { qpn: 0, response_time: 0, subscribe: 0, ..*info };
    plain(one) == plain(other)
}

impl Subscriptions {
    /// Subscribes, or ends a subscription.
    pub(super) fn set(&mut self, request: &SaRequest<'_>) -> Answer {
        let info: InformInfo = request.template();
        let subscribes = info.subscribe == 1;
        let qpn = if subscribes || info.qpn == 0 { request.from.qpn } else { info.qpn };
        let found = self
            .all
            .iter()
            .position(|known| known.peer.lid == request.from.lid && known.peer.qpn == qpn && same(&known.info, &info));
        match (info.subscribe, found) {
            (1, Some(at)) => self.all[at].trusted |= request.trusted,
            (1, None) => {
                let own = self.all.iter().filter(|known| known.port == request.asker).count();
                if self.all.len() >= MOST || own >= MOST_OF_PORT {
                    return Err(Refusal(STATUS_NO_RESOURCES));
                }
                let info = InformInfo { qpn, ..info };
                self.all.push(Subscription { peer: request.from, port: request.asker, trusted: request.trusted, info });
            }
            (0, Some(at)) => drop(self.all.remove(at)),
            _ => return Err(Refusal(STATUS_INVALID_REQUEST)),
        }
        let mut records = request.records::<InformInfo>();
        records.push(info)?;
        Ok(records)
    }

    /// Answers InformInfoRecord. Without the SM_Key, only the asker's own subscriptions.
    pub(super) fn query(&self, request: &SaRequest<'_>) -> Answer {
        let template: InformInfoRecord = request.template();
        let mut records = request.records::<InformInfoRecord>();
        for (number, known) in (0..).zip(&self.all) {
            if request.trusted || known.port == request.asker {
                let subscriber = request.inventory.port(known.port).map_or([0; 16], |port| request.gid(port));
                let record = InformInfoRecord { subscriber, number, info: known.info };
                records.offer(record, &template, request.mask)?;
            }
        }
        Ok(records)
    }

    /// The subscribers of a notice. `sees` says whether a port may hear of its subject.
    pub(super) fn of(&self, notice: &Notice, sees: impl Fn(PortId) -> bool) -> Vec<Peer> {
        let fits = |known: &&Subscription| {
            let info = &known.info;
            let all = info.lid_begin == u16::MAX || info.gid != [0; 16];
            let last = info.lid_end.max(info.lid_begin);
            (info.generic == 1) == notice.generic
                && (info.kind == u16::MAX || info.kind == u16::from(notice.kind))
                && (info.number == u16::MAX || info.number == notice.number)
                && (info.producer == 0xff_ffff || info.producer == notice.producer)
                && (info.gid == [0; 16] || info.gid == notice.issuer_gid)
                && (all || (info.lid_begin..=last).contains(&notice.issuer_lid))
                && (known.trusted || notice.number < FIRST_OF_SECURITY && sees(known.port))
        };
        let mut peers: Vec<Peer> = self.all.iter().filter(fits).map(|known| known.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Ends the subscriptions of a peer that does not answer.
    pub(super) fn forget(&mut self, peer: Peer) {
        self.all.retain(|known| known.peer != peer);
    }

    /// Ends the subscriptions of ports that are gone.
    pub(super) fn retain(&mut self, exists: impl Fn(PortId) -> bool) {
        self.all.retain(|known| exists(known.port));
    }
}
