//! Shared parts of the tests: a private agent, engines on it, and [`Side`]s to connect with each
//! other.
//!
//! `everywhere!` runs a test between engines of one agent (over lanes) and between hosts (over the
//! switch). `even_with_losses!` also runs it between hosts whose packets are harmed.
//!
//! Nothing here sleeps. No wait is longer than [`PATIENCE`], which only a hang reaches.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod memory;
pub(crate) mod paths;
pub(crate) mod stranger;
pub(crate) mod wait;
pub(crate) mod xrc;

use std::path::PathBuf;
use std::sync::Arc;

use ::fabric::Faults;
use abi::ah::AhAttr;
use abi::post::Sge;
use abi::qp::{Dest, ModifyQp, attr, state};
use agent::port_change::PortChange;
use agent::{Agent, AgentHandle, Config};
use engine::{Ah, Caps, Cq, CqSpec, Engine, Mr, Pd, Qp, QpSpec, RecvWr, SendWr, Service, SocketControl, Srq};

pub(crate) use memory::Memory;
use wait::next;

/// The Q_Key of all datagram QPs of the tests.
pub(crate) const QKEY: u32 = 0x0001_1111;

/// An address that every machine has, with an MTU of 4096.
const LOOPBACK: &str = "addresses = ['127.0.0.1']";

/// Local write and every remote right.
pub(crate) const ALL_RIGHTS: u32 = 0xf;

/// Runs a test between programs of one agent, and between programs of two agents.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! everywhere {
    ($($name:ident)*) => { $(mod $name {
        use crate::common::Fabric;
        use ::fabric::Faults;

        #[test]
        fn on_one_host() {
            super::$name(&Fabric::start());
        }

        #[test]
        fn between_hosts() {
            super::$name(&Fabric::hosts(["10.0.0.1", "10.0.0.2"], 4096, Faults::default()));
        }

        #[test]
        fn between_hosts_with_small_packets() {
            super::$name(&Fabric::hosts(["fd00::1", "fd00::2"], 1024, Faults::default()));
        }
    })* };
}
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use everywhere;

/// Runs a test everywhere, and also where packets are lost, duplicated, reordered and corrupted.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! even_with_losses {
    ($($name:ident)*) => { $(mod $name {
        use crate::common::Fabric;
        use ::fabric::Faults;

        #[test]
        fn on_one_host() {
            super::$name(&Fabric::start());
        }

        #[test]
        fn between_hosts() {
            super::$name(&Fabric::hosts(["10.0.0.1", "10.0.0.2"], 4096, Faults::default()));
        }

        #[test]
        fn between_hosts_with_small_packets() {
            super::$name(&Fabric::hosts(["fd00::1", "fd00::2"], 1024, Faults::default()));
        }

        #[test]
        fn between_hosts_with_losses() {
            super::$name(&Fabric::hosts(["10.0.0.1", "10.0.0.2"], 4096, Faults::loss(0.03, 3)));
        }

        #[test]
        fn between_hosts_with_every_harm() {
            super::$name(&Fabric::hosts(["fd00::1", "fd00::2"], 1024, Faults::all(0.01, 4)));
        }
    })* };
}
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use even_with_losses;

/// Agents, and the engines that were opened on them.
pub(crate) struct Fabric {
    dir: tempfile::TempDir,
    /// An agent with a run directory.
    agent: Option<AgentHandle>,
    /// Used instead of `agent`: engines are opened on the hosts in turn.
    hosts: Option<::fabric::Fabric>,
    engines: parking_lot::Mutex<Vec<Arc<Engine>>>,
}

impl Fabric {
    pub(crate) fn start() -> Self {
        Self::configured(LOOPBACK)
    }

    pub(crate) fn configured(config: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config::parse(config).expect("a configuration");
        let agent = Agent::start(&config, Some(dir.path())).expect("an agent");
        Self { dir, agent: Some(agent), hosts: None, engines: parking_lot::Mutex::new(Vec::new()) }
    }

    /// Two hosts with a switch between them.
    pub(crate) fn hosts(addresses: [&str; 2], mtu: u32, faults: Faults) -> Self {
        let builder = addresses.into_iter().fold(::fabric::Fabric::builder(), |builder, address| builder.host(address));
        let hosts = builder.mtu(mtu).faults(faults).build().expect("hosts");
        let dir = tempfile::tempdir().expect("a directory");
        Self { dir, agent: None, hosts: Some(hosts), engines: parking_lot::Mutex::new(Vec::new()) }
    }

    /// One host, or two at 10.0.0.1 and 10.0.0.2. The device has another port without such an
    /// address.
    pub(crate) fn two_ports(hosts: bool) -> Self {
        let ports = "[[devices]]\n[[devices.ports]]\n[[devices.ports]]\ninterfaces = []\n";
        if !hosts {
            return Self::configured(&format!("{LOOPBACK}\n{ports}"));
        }
        let config = Config::parse(ports).expect("a configuration");
        let hosts = ::fabric::Fabric::builder().host("10.0.0.1").host("10.0.0.2").config(config).build();
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Some(hosts.expect("hosts"));
        Self { dir, agent: None, hosts, engines: parking_lot::Mutex::new(Vec::new()) }
    }

    /// Two hosts with two addresses each: 10.0.0.1 and 10.0.1.1, 10.0.0.2 and 10.0.1.2.
    pub(crate) fn two_paths(mtu: u32, faults: Faults) -> Self {
        let hosts = ::fabric::Fabric::builder().host_with(["10.0.0.1", "10.0.1.1"]).host_with(["10.0.0.2", "10.0.1.2"]);
        let hosts = hosts.mtu(mtu).faults(faults).build().expect("hosts");
        let dir = tempfile::tempdir().expect("a directory");
        Self { dir, agent: None, hosts: Some(hosts), engines: parking_lot::Mutex::new(Vec::new()) }
    }

    /// One host, or two at 10.0.0.1 and 10.0.0.2, whose ports belong to these partitions.
    pub(crate) fn partitions(hosts: bool, pkeys: &str) -> Self {
        Self::with_port(hosts, &format!("pkeys = {pkeys}"))
    }

    /// One host, or two at 10.0.0.1 and 10.0.0.2, whose ports have these keys in the configuration.
    pub(crate) fn with_port(hosts: bool, keys: &str) -> Self {
        let port = format!("[[devices]]\n[[devices.ports]]\n{keys}\n");
        if !hosts {
            return Self::configured(&format!("{LOOPBACK}\n{port}"));
        }
        let config = Config::parse(&port).expect("a configuration");
        let hosts = ::fabric::Fabric::builder().host("10.0.0.1").host("10.0.0.2").config(config).build();
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Some(hosts.expect("hosts"));
        Self { dir, agent: None, hosts, engines: parking_lot::Mutex::new(Vec::new()) }
    }

    /// Replaces the P_Keys of port 1 of all hosts.
    pub(crate) fn set_pkeys(&self, pkeys: &[u16]) {
        self.change_port(&PortChange { pkeys: Some(pkeys.to_vec()), ..PortChange::default() });
    }

    /// Changes port 1 of all hosts.
    pub(crate) fn change_port(&self, change: &PortChange) {
        self.agents().for_each(|agent| agent.change_port(0, 1, change.clone()).expect("possible values"));
    }

    /// Takes a port of all hosts down, or makes it active.
    pub(crate) fn set_port(&self, port: u32, up: bool) {
        self.agent.iter().for_each(|agent| agent.set_port(0, port, up));
        self.hosts.iter().flat_map(::fabric::Fabric::hosts).for_each(|host| host.set_port(port, up));
    }

    /// Adds faults on demand to every agent. All engines know the rules when this returns.
    pub(crate) fn add_faults(&self, rules: &str) {
        let add = |agent: &AgentHandle| drop(agent.add_faults(rules).unwrap_or_else(|why| panic!("{why}")));
        self.agents().for_each(add);
    }

    /// Removes all rules of faults on demand.
    pub(crate) fn clear_faults(&self) {
        self.agents().for_each(AgentHandle::clear_faults);
    }

    /// How often rules were checked and have acted, on all agents together.
    pub(crate) fn fault_counts(&self) -> (u64, u64) {
        let rows: Vec<_> = self.agents().map(|agent| agent.faults().expect("the agent answers")).collect();
        let rows = rows.iter().flat_map(|list| list["rules"].as_array().expect("a list").iter());
        let number = |row: &serde_json::Value, member: &str| row[member].as_u64().expect("a number");
        rows.fold((0, 0), |(seen, acted), row| (seen + number(row, "seen"), acted + number(row, "acted")))
    }

    fn agents(&self) -> impl Iterator<Item = &AgentHandle> {
        let hosts = self.hosts.iter().flat_map(::fabric::Fabric::hosts).map(|host| host.agent());
        self.agent.iter().chain(hosts)
    }

    /// One of the hosts, if there are any.
    pub(crate) fn host(&self, index: usize) -> Option<&::fabric::Host> {
        self.hosts.as_ref().map(|hosts| hosts.host(index))
    }

    /// The node that the agent's clients connect to.
    pub(crate) fn node(&self, device: usize) -> PathBuf {
        self.dir.path().join(format!("uverbs{device}"))
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        self.engine_of(0)
    }

    pub(crate) fn engine_of(&self, device: usize) -> Arc<Engine> {
        let mut engines = self.engines.lock();
        let engine = match &self.hosts {
            Some(fabric) => {
                let host = engines.len() % fabric.hosts().len();
                fabric.host(host).connect_to(device).expect("a context")
            }
            None => {
                let control = SocketControl::open(&self.node(device), 0).expect("an agent");
                Engine::open(Box::new(control)).expect("a context")
            }
        };
        engines.push(Arc::clone(&engine));
        engine
    }

    /// How many packets the switch has corrupted.
    pub(crate) fn damaged(&self) -> u64 {
        self.hosts.as_ref().map_or(0, |hosts| hosts.switch().counts().damaged)
    }

    /// Two sides, each on its own engine, connected (UD: ready to send).
    pub(crate) fn pair(&self, plan: &Plan) -> (Side, Side) {
        let (a, b) = (Side::new(&self.engine(), plan), Side::new(&self.engine(), plan));
        connect(&a, &b);
        (a, b)
    }

    /// The switch between two hosts.
    pub(crate) fn switch(&self) -> &::fabric::Switch {
        self.hosts.as_ref().expect("hosts").switch()
    }

    pub(crate) fn stop_agent(&mut self) {
        self.agent.take().expect("it still runs").stop();
    }

    pub(crate) fn start_agent(&mut self) {
        let config = Config::parse(LOOPBACK).expect("a configuration");
        self.agent = Some(Agent::start(&config, Some(self.dir.path())).expect("an agent"));
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.engines.lock().iter().for_each(Engine::close);
    }
}

/// The properties of a [`Side`].
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) service: Service,
    pub(crate) port: u8,
    /// The GID index, if it is not the usual one ([`Side::gid_index`]).
    pub(crate) gid_index: Option<u8>,
    pub(crate) pkey_index: u16,
    pub(crate) memory: usize,
    pub(crate) caps: Caps,
    pub(crate) mr_access: u32,
    pub(crate) qp_access: u32,
    pub(crate) sq_sig_all: bool,
    pub(crate) cqe: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
}

impl Plan {
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            port: 1,
            gid_index: None,
            pkey_index: 0,
            memory: 64 * 1024,
            caps: Caps { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 },
            mr_access: ALL_RIGHTS,
            qp_access: 0xe,
            sq_sig_all: true,
            cqe: 128,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
        }
    }

    pub(crate) fn rc() -> Self {
        Self::new(Service::Rc)
    }

    pub(crate) fn uc() -> Self {
        Self::new(Service::Uc)
    }

    pub(crate) fn ud() -> Self {
        Self::new(Service::Ud)
    }

    /// Retries end after 12 ms, for absent peers. This is too short for live peers on a busy
    /// machine.
    pub(crate) fn hasty(self) -> Self {
        Self { timeout: 10, retry_cnt: 2, ..self }
    }
}

/// One QP with a CQ for its sends, one for its receives, and registered memory.
pub(crate) struct Side {
    pub(crate) engine: Arc<Engine>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) scq: Arc<Cq>,
    pub(crate) rcq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) memory: Memory,
    pub(crate) mr: Arc<Mr>,
    pub(crate) plan: Plan,
}

impl Side {
    pub(crate) fn new(engine: &Arc<Engine>, plan: &Plan) -> Self {
        Self::with_srq(engine, &engine.alloc_pd().expect("a PD"), plan, None)
    }

    pub(crate) fn with_srq(engine: &Arc<Engine>, pd: &Arc<Pd>, plan: &Plan, srq: Option<&Arc<Srq>>) -> Self {
        let scq = cq(engine, plan.cqe);
        let rcq = cq(engine, plan.cqe);
        Self::on_cqs(engine, pd, plan, (&scq, &rcq), srq)
    }

    pub(crate) fn on_cqs(
        engine: &Arc<Engine>,
        pd: &Arc<Pd>,
        plan: &Plan,
        (scq, rcq): (&Arc<Cq>, &Arc<Cq>),
        srq: Option<&Arc<Srq>>,
    ) -> Self {
        let qp = make_qp(engine, pd, plan, (scq, rcq), srq);
        let memory = Memory::new(plan.memory);
        let mr = register(pd, &memory, plan.mr_access);
        Self {
            engine: Arc::clone(engine),
            pd: Arc::clone(pd),
            scq: Arc::clone(scq),
            rcq: Arc::clone(rcq),
            qp,
            memory,
            mr,
            plan: *plan,
        }
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [Sge::new(self.memory.addr(at), len as u32, self.mr.lkey())]
    }

    pub(crate) fn post(&self, wr: &SendWr<'_>) {
        let mut batch = self.qp.send_batch().expect("a batch");
        batch.push(wr).unwrap_or_else(|errno| panic!("post_send: {errno}; {:?}", engine::reason::last(2)));
        batch.finish();
    }

    /// Posts requests in one batch.
    pub(crate) fn post_all(&self, wrs: &[SendWr<'_>]) {
        let mut batch = self.qp.send_batch().expect("a batch");
        wrs.iter().for_each(|wr| batch.push(wr).expect("room"));
        batch.finish();
    }

    pub(crate) fn recv(&self, wr_id: u64, at: usize, len: usize) {
        self.qp.post_recv(&RecvWr { wr_id, sges: &self.sge(at, len) }).expect("a receive");
    }

    /// The next completion of a send.
    pub(crate) fn sent(&self) -> abi::cq::Wc {
        next(&self.scq)
    }

    /// The next completion of a receive.
    pub(crate) fn received(&self) -> abi::cq::Wc {
        next(&self.rcq)
    }

    pub(crate) fn init(&self) {
        let mut attributes = ModifyQp {
            attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT,
            qp_state: state::INIT,
            port_num: self.plan.port,
            pkey_index: self.plan.pkey_index,
            qp_access_flags: self.plan.qp_access,
            qkey: QKEY,
            ..ModifyQp::default()
        };
        attributes.attr_mask |= if self.plan.service == Service::Ud { attr::QKEY } else { attr::ACCESS_FLAGS };
        self.modify(&attributes);
    }

    pub(crate) fn rtr(&self, gid: [u8; 16], qpn: u32) {
        self.modify(&self.rtr_request(gid, qpn, self.path_mtu()));
    }

    /// The attributes for RTR.
    pub(crate) fn rtr_request(&self, gid: [u8; 16], qpn: u32, path_mtu: u8) -> ModifyQp {
        let mut attributes = ModifyQp {
            attr_mask: attr::STATE,
            qp_state: state::RTR,
            dest: Dest {
                dgid: gid,
                sgid_index: self.gid_index(),
                is_global: 1,
                port_num: self.plan.port,
                hop_limit: 1,
                ..Dest::default()
            },
            path_mtu,
            dest_qp_num: qpn,
            rq_psn: 7,
            max_dest_rd_atomic: self.plan.max_dest_rd_atomic,
            min_rnr_timer: self.plan.min_rnr_timer,
            ..ModifyQp::default()
        };
        attributes.attr_mask |= match self.plan.service {
            Service::Rc => {
                attr::AV
                    | attr::PATH_MTU
                    | attr::DEST_QPN
                    | attr::RQ_PSN
                    | attr::MAX_DEST_RD_ATOMIC
                    | attr::MIN_RNR_TIMER
            }
            Service::Uc => attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN,
            Service::Ud => 0,
            Service::XrcIni | Service::XrcTgt => unreachable!("a side has both queues"),
        };
        attributes
    }

    pub(crate) fn rts(&self) {
        let mut attributes = ModifyQp {
            attr_mask: attr::STATE | attr::SQ_PSN,
            qp_state: state::RTS,
            timeout: self.plan.timeout,
            retry_cnt: self.plan.retry_cnt,
            rnr_retry: self.plan.rnr_retry,
            sq_psn: 7,
            max_rd_atomic: self.plan.max_rd_atomic,
            ..ModifyQp::default()
        };
        if self.plan.service == Service::Rc {
            attributes.attr_mask |= attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        }
        self.modify(&attributes);
    }

    pub(crate) fn to(&self, state: u8) {
        self.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state, ..ModifyQp::default() });
    }

    pub(crate) fn modify(&self, attributes: &ModifyQp) {
        self.qp.modify(attributes).unwrap_or_else(|error| panic!("modify to {}: {error}", attributes.qp_state));
    }

    pub(crate) fn gid(&self) -> [u8; 16] {
        self.engine.query_gid(self.plan.port, u32::from(self.gid_index())).expect("a GID")
    }

    /// The GID index of the side: 0 on one host. Between hosts, the index of the address that other
    /// hosts know.
    pub(crate) fn gid_index(&self) -> u8 {
        self.plan.gid_index.unwrap_or_else(|| {
            let gid = self.engine.query_gid(self.plan.port, 1).unwrap_or_default();
            u8::from(gid[0] == 0xfd || gid[12] == 10)
        })
    }

    /// The port's MTU in bytes.
    pub(crate) fn mtu(&self) -> usize {
        let port = self.engine.query_port(self.plan.port).expect("a port");
        128 << port.active_mtu
    }

    /// The MTU code for RTR.
    fn path_mtu(&self) -> u8 {
        match self.gid_index() {
            // Lanes ignore the path MTU.
            0 => 3,
            _ => self.engine.query_port(self.plan.port).expect("a port").active_mtu,
        }
    }

    /// An address handle to `peer`.
    pub(crate) fn ah(&self, peer: &Side) -> Arc<Ah> {
        let port_num = self.plan.port;
        let sgid_index = self.gid_index();
        let vector =
            AhAttr { dgid: peer.gid(), sgid_index, is_global: 1, port_num, hop_limit: 64, ..AhAttr::default() };
        self.pd.create_ah(&vector).expect("an address handle")
    }

    /// Destroys all objects of the side; fails if anything still uses them.
    pub(crate) fn destroy(self) {
        self.qp.destroy().expect("the QP ends");
        self.scq.destroy().expect("the CQ ends");
        if !Arc::ptr_eq(&self.scq, &self.rcq) {
            self.rcq.destroy().expect("the CQ ends");
        }
        self.mr.dereg().expect("the MR ends");
        self.pd.dealloc().expect("the PD ends");
    }
}

pub(crate) fn ah(pd: &Arc<Pd>, dgid: [u8; 16], sgid_index: u8) -> Arc<Ah> {
    let vector = AhAttr { dgid, sgid_index, is_global: 1, port_num: 1, hop_limit: 64, ..AhAttr::default() };
    pd.create_ah(&vector).expect("an address handle")
}

pub(crate) fn cq(engine: &Arc<Engine>, cqe: u32) -> Arc<Cq> {
    engine.create_cq(&CqSpec { cqe, channel: None, comp_vector: 0, cookie: 1 }).expect("a CQ")
}

pub(crate) fn make_qp(
    engine: &Arc<Engine>,
    pd: &Arc<Pd>,
    plan: &Plan,
    (send_cq, recv_cq): (&Arc<Cq>, &Arc<Cq>),
    srq: Option<&Arc<Srq>>,
) -> Arc<Qp> {
    let Plan { service, caps, sq_sig_all, .. } = *plan;
    engine.create_qp(pd, &QpSpec { service, send_cq, recv_cq, srq, caps, sq_sig_all, cookie: 2 }).expect("a QP")
}

pub(crate) fn register(pd: &Arc<Pd>, memory: &Memory, access: u32) -> Arc<Mr> {
    pd.reg_mr(memory.addr(0), memory.len() as u64, memory.addr(0), access).expect("an MR")
}

/// Connects both sides to each other and brings them to RTS (UD: only to RTS).
pub(crate) fn connect(a: &Side, b: &Side) {
    let gids = (a.gid(), b.gid());
    for (side, gid, qpn) in [(a, gids.1, b.qp.qpn()), (b, gids.0, a.qp.qpn())] {
        side.init();
        side.rtr(gid, qpn);
    }
    a.rts();
    b.rts();
}

/// Brings a datagram QP to RTS.
pub(crate) fn start(side: &Side) {
    side.init();
    side.rtr([0; 16], 0);
    side.rts();
}
