//! Sections 8 and 9 for extended reliable connections: both ends migrate as the ends of RC
//! connections do, and a queue that cannot continue raises an event.

use std::sync::Arc;

use abi::event::kind;
use abi::qp::migration::{ARMED, MIGRATED, REARM};
use abi::qp::{Dest, ModifyQp, attr, state};

use crate::common::wait::{event, next, no_event, until};
use crate::common::{Fabric, cq};
use engine::{Caps, Cq, Ece, Engine, Hold, InitiatorSpec, Qp, RecvWr, SendWr, Srq, SrqSpec};

const O_CREAT: u32 = 0o100;

/// An initiator on one engine, and a target with a queue on another engine.
struct Pair {
    server: Arc<Engine>,
    client: Arc<Engine>,
    srq: Arc<Srq>,
    received: Arc<Cq>,
    target: Arc<Hold>,
    sent: Arc<Cq>,
    initiator: Arc<Qp>,
}

fn gid(engine: &Arc<Engine>, index: u8) -> [u8; 16] {
    engine.query_gid(1, u32::from(index)).expect("a GID")
}

/// Brings a QP to RTS, with an alternate path if both engines have two addresses.
fn connect(qp: &Qp, engines: (&Arc<Engine>, &Arc<Engine>), peer_qpn: u32) {
    let (own, peer) = engines;
    let to = |index| Dest {
        dgid: gid(peer, index),
        sgid_index: index,
        is_global: 1,
        port_num: 1,
        hop_limit: 64,
        ..Dest::default()
    };
    let whole = ModifyQp {
        port_num: 1,
        dest: to(1),
        alt_dest: to(2),
        alt_port_num: 1,
        alt_timeout: 12,
        path_mtu: own.query_port(1).expect("a port").active_mtu,
        dest_qp_num: peer_qpn,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 12,
        retry_cnt: 3,
        rnr_retry: 7,
        ..ModifyQp::default()
    };
    let rtr =
        attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
    let rts = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC;
    let alternate = if gid(own, 2) == [0; 16] { 0 } else { attr::ALT_PATH };
    for (qp_state, mask) in [
        (state::INIT, attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS),
        (state::RTR, rtr | alternate),
        (state::RTS, rts),
    ] {
        qp.modify(&ModifyQp { qp_state, attr_mask: attr::STATE | mask, ..whole }).expect("the next state");
    }
}

impl Pair {
    fn new(fabric: &Fabric, cqe: u32) -> Self {
        let (server, client) = (fabric.engine(), fabric.engine());
        let xrcd = server.open_xrcd(None, O_CREAT).expect("a domain");
        let received = cq(&server, cqe);
        let spec = SrqSpec { max_wr: 16, max_sge: 1, cookie: 5 };
        let pd = server.alloc_pd().expect("a PD");
        let srq = server.create_xrc_srq(&pd, &xrcd, &received, &spec).expect("an SRQ");
        let target = server.create_target(&xrcd, 9).expect("a target");
        let sent = cq(&client, 64);
        let caps = Caps { max_send_wr: 16, max_send_sge: 2, ..Caps::default() };
        let spec = InitiatorSpec { send_cq: &sent, caps, sq_sig_all: true, cookie: 3 };
        let initiator = client.create_initiator(&client.alloc_pd().expect("a PD"), &spec).expect("an initiator");
        connect(target.qp(), (&server, &client), initiator.qpn());
        connect(&initiator, (&client, &server), target.qp().qpn());
        Self { server, client, srq, received, target, sent, initiator }
    }

    fn send(&self) -> u32 {
        let mut batch = self.initiator.send_batch().expect("a batch");
        batch.push(&SendWr { xrc_srq: self.srq.number(), ..SendWr::default() }).expect("room");
        batch.finish();
        next(&self.sent).status
    }

    fn receive(&self, wr_id: u64) {
        self.srq.post(&RecvWr { wr_id, sges: &[] }).expect("a place");
    }

    /// Sends one message and receives it.
    fn exchange(&self) {
        self.receive(7);
        assert_eq!((self.send(), next(&self.received).wr_id), (0, 7));
    }

    fn states(&self) -> [u8; 2] {
        [&self.initiator, self.target.qp()].map(|qp| qp.query(u32::MAX).expect("an answer").path_mig_state)
    }

    fn arm(&self) {
        for qp in [&self.initiator, self.target.qp()] {
            set(qp, REARM);
        }
        until("both armed", || {
            self.exchange();
            (self.states() == [ARMED; 2]).then_some(())
        });
    }

    fn have_migrated(&self) {
        let events = [event(&self.client), event(&self.server)].map(|event| (event.kind, event.element));
        assert_eq!(events, [(kind::PATH_MIG, 3), (kind::PATH_MIG, 9)]);
        assert_eq!(self.states(), [MIGRATED; 2]);
        no_event(&self.client);
        no_event(&self.server);
    }
}

fn set(qp: &Qp, path_mig_state: u8) {
    let attributes = ModifyQp { attr_mask: attr::PATH_MIG_STATE, path_mig_state, ..ModifyQp::default() };
    qp.modify(&attributes).expect("a migration state");
}

#[test]
fn apm_explicit_migration_of_xrc() {
    for fabric in [
        Fabric::configured("addresses = ['127.0.0.1', '127.0.0.2']"),
        Fabric::two_paths(4096, ::fabric::Faults::default()),
    ] {
        let pair = Pair::new(&fabric, 64);
        pair.arm();
        set(&pair.initiator, MIGRATED);
        pair.exchange();
        pair.have_migrated();
        pair.arm();
        set(pair.target.qp(), MIGRATED);
        // The target's responses tell the initiator about the migration.
        pair.exchange();
        pair.have_migrated();
    }
}

#[test]
fn apm_failover_of_xrc() {
    let fabric = Fabric::two_paths(4096, ::fabric::Faults::default());
    let pair = Pair::new(&fabric, 64);
    pair.arm();
    let host = fabric.host(0).expect("a host");
    host.cut(host.addresses()[0]);
    pair.exchange();
    pair.have_migrated();
}

#[test]
fn event_srq_err_when_its_cq_is_overrun() {
    let fabric = Fabric::start();
    let pair = Pair::new(&fabric, 2);
    for wr_id in 0..3 {
        pair.receive(wr_id);
        assert_eq!(pair.send(), 0);
    }
    let told = [event(&pair.server), event(&pair.server)].map(|event| (event.kind, event.element));
    assert_eq!(told, [(kind::CQ_ERR, 1), (kind::SRQ_ERR, 5)]);
    // A destroyed object leaves no event behind.
    assert_eq!(pair.srq.destroy().expect("destroyed"), 1);
    no_event(&pair.server);
}

#[test]
fn ece_offers_no_option_and_refuses_other_vendors() {
    let fabric = Fabric::start();
    let (a, _b) = fabric.pair(&crate::common::Plan::rc());
    let own = a.engine.query_device().expect("facts").vendor_id;
    assert_eq!(a.qp.ece(), Ece { vendor_id: own, options: 0 });
    let set = |vendor_id, options| a.qp.set_ece(Ece { vendor_id, options }).map_err(|error| error.errno);
    assert_eq!(set(own, 0), Ok(Ece { vendor_id: own, options: 0 }));
    assert_eq!(set(own, 0x8000_0001), Ok(Ece { vendor_id: own, options: 0 }), "none of them is accepted");
    assert_eq!(set(0x15b3, 0), Err(abi::errno::Errno::EINVAL));
    assert!(engine::reason::last(1)[0].contains("vendor 0x15b3"), "{:?}", engine::reason::last(1));
}
