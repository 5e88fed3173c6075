//! INIT_QP_ATTR: the attributes for the transitions of a QP to INIT, RTR and RTS. IBA 12.9.8,
//! 11.2.5.3.

use abi::Errno;
use abi::ah::{AhAttr, rate_mbps};
use abi::mr::access;
use abi::qp::{attr, kind, migration, state};
use abi::ucma::connection::{InitQpAttr, QpAttr};
use protocol::cm::{Connection, Path};

use super::Manager;
use super::dispatch::CmCall;
use super::id::Id;
use super::locals::Attachment;
use crate::refusal::{Outcome, refuse};

impl Manager {
    pub(super) fn init_qp_attr(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let InitQpAttr { id: name, qp_state, .. } = call.command.body();
        self.id(call, name)?;
        let connection = self.ids.get(name).and_then(|id| self.connection_of(id));
        let alternate = connection.as_ref().and_then(|connection| self.alternate(connection));
        let id = self.id(call, name)?;
        let Some(at) = id.attachment else {
            return refuse(
                Errno::EINVAL,
                format!("id {name:#x} is not bound to a device yet; resolve its address first"),
            );
        };
        let pkey = id.pkey().unwrap_or(at.pkey);
        let Some(pkey_index) = self.locals.pkey_index(&at, pkey) else {
            let text = format!("port {} does not belong to the partition {pkey:#06x} of id {name:#x}", at.port);
            return refuse(Errno::EINVAL, text);
        };
        let id = self.id(call, name)?;
        match attributes(id, (&at, pkey_index), connection.as_ref(), qp_state)
            .map(|answer| with_alternate(answer, &at, connection.as_ref(), alternate.as_ref()))
        {
            Some(answer) => Ok(call.command.answer(&answer)),
            None => {
                let stage = id.stage;
                refuse(Errno::EINVAL, format!("id {name:#x} is {stage}: nothing is known for QP state {qp_state}"))
            }
        }
    }
}

impl Manager {
    /// Where a connection's alternate path starts, if the connection has one that starts at this
    /// agent.
    pub(super) fn alternate(&self, connection: &Connection) -> Option<Attachment> {
        self.locals.with_gid(&connection.alternate?.sgid)
    }
}

/// Adds the alternate path, if it starts at the same device. The transition to RTR loads the path,
/// and the transition to RTS rearms it.
fn with_alternate(
    answer: QpAttr,
    at: &Attachment,
    connection: Option<&Connection>,
    alternate: Option<&Attachment>,
) -> QpAttr {
    let (Some(connection), Some(from)) = (connection, alternate.filter(|from| from.device == at.device)) else {
        return answer;
    };
    let (Some(path), Ok(next)) = (&connection.alternate, u8::try_from(answer.qp_state)) else { return answer };
    match next {
        state::RTR => QpAttr {
            qp_attr_mask: answer.qp_attr_mask | attr::ALT_PATH,
            alt_ah_attr: vector(path, from),
            alt_pkey_index: answer.pkey_index,
            alt_port_num: from.port,
            alt_timeout: connection.ack_timeout,
            ..answer
        },
        state::RTS => QpAttr {
            qp_attr_mask: answer.qp_attr_mask | attr::PATH_MIG_STATE,
            path_mig_state: u32::from(migration::REARM),
            ..answer
        },
        _ => answer,
    }
}

/// The attributes for one state. `None` if they are not known yet, or if `qp_state` is not INIT,
/// RTR or RTS.
pub(super) fn attributes(
    id: &Id,
    (at, pkey_index): (&Attachment, u16),
    connection: Option<&Connection>,
    qp_state: u32,
) -> Option<QpAttr> {
    let base = QpAttr { qp_attr_mask: attr::STATE, qp_state, port_num: at.port, pkey_index, ..QpAttr::default() };
    if id.is_datagram() {
        return datagram(base, id.qkey, qp_state);
    }
    let known = connection.filter(|connection| connection.remote_qpn.value() != 0);
    match u8::try_from(qp_state).ok()? {
        state::INIT => Some(QpAttr {
            qp_attr_mask: attr::STATE | attr::ACCESS_FLAGS | attr::PKEY_INDEX | attr::PORT,
            qp_access_flags: match connection {
                None => 0,
                Some(connection) if connection.responder_resources == 0 => access::REMOTE_WRITE,
                Some(_) => access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            },
            ..base
        }),
        state::RTR => Some(ready_to_receive(base, id, at, known?)),
        state::RTS => Some(ready_to_send(base, id, known?)),
        _ => None,
    }
}

/// A datagram QP needs only its Q_Key, P_Key index and port.
fn datagram(base: QpAttr, qkey: u32, qp_state: u32) -> Option<QpAttr> {
    match u8::try_from(qp_state).ok()? {
        state::INIT => {
            Some(QpAttr { qp_attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::QKEY, qkey, ..base })
        }
        state::RTR => Some(base),
        state::RTS => Some(QpAttr { qp_attr_mask: attr::STATE | attr::SQ_PSN, ..base }),
        _ => None,
    }
}

fn ready_to_receive(base: QpAttr, id: &Id, at: &Attachment, connection: &Connection) -> QpAttr {
    let mut answer = QpAttr {
        qp_attr_mask: attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN,
        ah_attr: vector(&connection.path, at),
        path_mtu: u32::from(connection.path.mtu),
        dest_qp_num: connection.remote_qpn.value(),
        rq_psn: connection.receive_psn.value(),
        ..base
    };
    if matches!(id.kind, kind::RC | kind::XRC_TGT) {
        answer.qp_attr_mask |= attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        answer.max_dest_rd_atomic = connection.responder_resources;
    }
    answer
}

fn ready_to_send(base: QpAttr, id: &Id, connection: &Connection) -> QpAttr {
    let mut answer = QpAttr { qp_attr_mask: attr::STATE | attr::SQ_PSN, sq_psn: connection.send_psn.value(), ..base };
    if matches!(id.kind, kind::RC | kind::XRC_INI | kind::XRC_TGT) {
        answer.qp_attr_mask |= attr::TIMEOUT;
        answer.timeout = id.options.ack_timeout.unwrap_or(connection.ack_timeout);
    }
    if matches!(id.kind, kind::RC | kind::XRC_INI) {
        answer.qp_attr_mask |= attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        answer.retry_cnt = connection.retry_count;
        answer.rnr_retry = connection.rnr_retry_count;
        answer.max_rd_atomic = connection.initiator_depth;
    }
    answer
}

/// The address vector of a path.
pub(super) fn vector(path: &Path, at: &Attachment) -> AhAttr {
    AhAttr {
        dgid: path.dgid,
        dlid: if path.dlid == 0 { at.lid_of(&path.dgid) } else { path.dlid },
        flow_label: path.flow_label,
        sgid_index: at.index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.sl,
        // The port's own rate is no limit. A peer may name rates that are newer than this code.
        static_rate: if path.rate != at.rate && rate_mbps(path.rate).is_some() { path.rate } else { 0 },
        src_path_bits: if path.slid == 0 { 0 } else { (path.slid.wrapping_sub(at.lid) & 0x7f) as u8 },
        is_global: u8::from(!path.is_subnet_local()),
        port_num: at.port,
        ..AhAttr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::channel::ChannelId;
    use crate::dscp::DscpTable;
    use crate::priority::PriorityTable;
    use abi::ucma::port_space;
    use wire::{Psn, Qpn};

    fn known() -> Connection {
        Connection {
            path: Path { dgid: [2; 16], mtu: 3, hop_limit: 64, ..Path::default() },
            remote_qpn: Qpn::new(0x1234),
            send_psn: Psn::new(5),
            receive_psn: Psn::new(6),
            responder_resources: 4,
            initiator_depth: 3,
            retry_count: 7,
            rnr_retry_count: 6,
            ack_timeout: 17,
            ..Connection::default()
        }
    }

    fn attachment() -> Attachment {
        Attachment {
            device: 0,
            port: 1,
            index: 2,
            is_address: true,
            gid: [1; 16],
            ifindex: 0,
            outward_mtu: 3,
            port_mtu: 5,
            dscp: DscpTable::default(),
            priority: PriorityTable::default(),
            rate: 16,
            lid: 0,
            subnet: None,
            pkey: 0xffff,
            fabric: None,
            iwarp: None,
        }
    }

    fn ask(kind: u8, connection: Option<&Connection>, qp_state: u8) -> Option<QpAttr> {
        let at = attachment();
        attributes(&Id::new(ChannelId(1), 1, port_space::TCP, kind), (&at, 3), connection, u32::from(qp_state))
    }

    #[test]
    fn a_connected_qp_is_told_everything_in_three_steps() {
        let init = ask(kind::RC, Some(&known()), state::INIT).expect("known");
        assert_eq!((init.qp_attr_mask, init.port_num, init.pkey_index), (1 | 8 | 16 | 32, 1, 3));
        assert_eq!(init.qp_access_flags, access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC);
        let rtr = ask(kind::RC, Some(&known()), state::RTR).expect("known");
        assert_eq!((rtr.path_mtu, rtr.dest_qp_num, rtr.rq_psn, rtr.max_dest_rd_atomic), (3, 0x1234, 6, 4));
        assert_eq!((rtr.ah_attr.dgid, rtr.ah_attr.sgid_index, rtr.ah_attr.is_global), ([2; 16], 2, 1));
        assert_ne!(rtr.qp_attr_mask & attr::MIN_RNR_TIMER, 0);
        let rts = ask(kind::RC, Some(&known()), state::RTS).expect("known");
        assert_eq!((rts.sq_psn, rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic), (5, 17, 7, 6, 3));
        let uc = ask(kind::UC, Some(&known()), state::RTS).expect("known");
        assert_eq!(uc.qp_attr_mask, attr::STATE | attr::SQ_PSN);
    }

    /// A target answers READs and atomics, an initiator starts them, and both
    /// have a timeout.
    #[test]
    fn each_end_of_an_xrc_connection_is_told_what_it_has() {
        let mask = |kind, next| ask(kind, Some(&known()), next).expect("known").qp_attr_mask;
        let reach = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        assert_eq!(mask(kind::XRC_INI, state::RTR), reach);
        assert_eq!(mask(kind::XRC_TGT, state::RTR), reach | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER);
        let send = attr::STATE | attr::SQ_PSN | attr::TIMEOUT;
        let tries = attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        assert_eq!(mask(kind::XRC_INI, state::RTS), send | tries);
        assert_eq!(mask(kind::XRC_TGT, state::RTS), send);
    }

    #[test]
    fn only_a_rate_that_is_not_the_ports_own_is_a_limit() {
        let at = attachment();
        let limit = |rate| vector(&Path { rate, ..Path::default() }, &at).static_rate;
        assert_eq!([0, at.rate, 2, 255].map(limit), [0, 0, 2, 0]);
    }

    #[test]
    fn an_alternate_path_is_loaded_in_rtr_and_rearmed_in_rts() {
        let elsewhere = Path { sgid: [7; 16], dgid: [8; 16], hop_limit: 9, ..Path::default() };
        let known = Connection { alternate: Some(elsewhere), ..known() };
        let at = attachment();
        let from = Attachment { index: 5, gid: [7; 16], ..at };
        let ask = |from: Option<&Attachment>, next| {
            let plain = ask(kind::RC, Some(&known), next).expect("known");
            (plain, with_alternate(plain, &at, Some(&known), from))
        };
        let (plain, told) = ask(Some(&from), state::RTR);
        assert_eq!(told.qp_attr_mask, plain.qp_attr_mask | attr::ALT_PATH);
        assert_eq!((told.alt_ah_attr.dgid, told.alt_ah_attr.sgid_index), ([8; 16], 5));
        assert_eq!((told.alt_port_num, told.alt_timeout, told.ah_attr), (1, 17, plain.ah_attr));
        let (plain, told) = ask(Some(&from), state::RTS);
        assert_eq!(told.qp_attr_mask, plain.qp_attr_mask | attr::PATH_MIG_STATE);
        assert_eq!(told.path_mig_state, u32::from(migration::REARM));
        // A path from another device, or from nowhere, is not loaded.
        let other = Attachment { device: 1, ..from };
        for next in [state::INIT, state::RTR, state::RTS] {
            for from in [None, Some(&other)] {
                let (plain, told) = ask(from, next);
                assert_eq!(told, plain);
            }
        }
    }

    #[test]
    fn attributes_of_an_unknown_connection_are_refused() {
        assert_eq!(ask(kind::RC, None, state::INIT).expect("always").qp_access_flags, 0);
        for qp_state in [state::RTR, state::RTS] {
            assert_eq!(ask(kind::RC, None, qp_state), None);
            assert_eq!(ask(kind::RC, Some(&Connection::default()), qp_state), None);
        }
        for qp_state in [state::RESET, state::SQD, 77] {
            assert_eq!(ask(kind::RC, Some(&known()), qp_state), None);
        }
        let ud = ask(kind::UD, None, state::INIT).expect("always");
        assert_eq!((ud.qkey, ud.qp_attr_mask & attr::QKEY != 0), (0x0123_4567, true));
    }
}
