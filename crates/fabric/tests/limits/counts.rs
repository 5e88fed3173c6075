//! How many objects of each kind a device can have. The maximum is created, one more is refused,
//! and after one is destroyed there is room for another.

use std::sync::Arc;

use abi::ah::AhAttr;
use abi::errno::Errno;
use abi::mr::access;
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::{Caps, Cq, CqSpec, Engine, Error, Pd, Qp, QpSpec, Service, SrqSpec};

use super::direct::Solo;
use super::refused;

/// Creates the maximum, checks that one more is refused, destroys all but one, and creates one
/// again.
#[track_caller]
fn fill<T>(what: &str, most: u32, make: impl Fn() -> Result<T, Error>, end: impl Fn(&T) -> Result<(), Error>) {
    let all: Vec<T> = (0..most)
        .map(|index| make().unwrap_or_else(|error| panic!("{what} {index} of {most}: {}", error.reason)))
        .collect();
    refused(make(), Errno::ENOMEM, &[what, &most.to_string()]);
    let (first, others) = all.split_first().expect("some");
    end(first).expect("one ends");
    let again = make().expect("there is room again");
    refused(make(), Errno::ENOMEM, &[what, &most.to_string()]);
    others.iter().chain([&again]).for_each(|object| end(object).expect("it ends"));
    end(&make().expect("and again")).expect("it ends");
}

fn cq(engine: &Arc<Engine>) -> Arc<Cq> {
    engine.create_cq(&CqSpec { cqe: 1, channel: None, comp_vector: 0, cookie: 1 }).expect("a CQ")
}

fn qp(engine: &Arc<Engine>, pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<Arc<Qp>, Error> {
    let caps = Caps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let spec = QpSpec { service: Service::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: true, cookie: 2 };
    engine.create_qp(pd, &spec)
}

#[test]
fn protection_domains_and_xrc_domains() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let most = engine.query_device().expect("limits").max_pd;
    assert!(most >= 65_536);
    fill("PD", most, || engine.alloc_pd(), |pd| pd.dealloc().map_err(Error::from));
    fill("XRC domain", most, || engine.open_xrcd(None, 0), |xrcd| xrcd.close());
}

#[test]
fn completion_queues() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let most = engine.query_device().expect("limits").max_cq;
    assert!(most >= 65_536);
    let spec = CqSpec { cqe: 1, channel: None, comp_vector: 0, cookie: 1 };
    fill("CQ", most, || engine.create_cq(&spec), |cq| cq.destroy().map(drop));
}

#[test]
fn shared_receive_queues() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let most = engine.query_device().expect("limits").max_srq;
    assert!(most >= 65_536);
    let pd = engine.alloc_pd().expect("a PD");
    let spec = SrqSpec { max_wr: 1, max_sge: 1, cookie: 0 };
    fill("SRQ", most, || engine.create_srq(&pd, &spec), |srq| srq.destroy().map(drop));
}

#[test]
fn address_handles() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let most = engine.query_device().expect("limits").max_ah;
    assert!(most >= 131_072);
    let pd = engine.alloc_pd().expect("a PD");
    let vector = AhAttr { dgid: [1; 16], is_global: 1, port_num: 1, hop_limit: 64, ..AhAttr::default() };
    fill("AH", most, || pd.create_ah(&vector), |ah| ah.destroy());
}

#[test]
fn memory_regions_and_windows() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let limits = engine.query_device().expect("limits");
    assert!(limits.max_mr >= 1 << 20 && limits.max_mw >= 1 << 20);
    let pd = engine.alloc_pd().expect("a PD");
    let windows: Vec<_> = (0..limits.max_mw).map(|_| pd.alloc_mw(2).expect("a window")).collect();
    refused(pd.alloc_mw(2), Errno::ENOMEM, &["memory window", &limits.max_mw.to_string()]);
    // All keys come from one space. The access right ON_DEMAND avoids checks of mappings, which
    // would take most of the time.
    let region = |index: u64| pd.reg_mr(4096 * (index + 1), 4096, 4096 * (index + 1), access::ON_DEMAND);
    let regions: Vec<_> = (0..u64::from(limits.max_mr)).map(|index| region(index).expect("an MR")).collect();
    refused(region(0), Errno::ENOMEM, &["MR", &limits.max_mr.to_string()]);
    regions[0].dereg().expect("it ends");
    region(0).expect("room for one");
    windows[0].dealloc().expect("it ends");
    pd.alloc_mw(1).expect("room for one");
    let keys: std::collections::HashSet<u32> = regions
        .iter()
        .skip(1)
        .map(|mr| mr.rkey() >> 8)
        .chain(windows.iter().skip(1).map(|mw| mw.rkey() >> 8))
        .collect();
    assert_eq!(keys.len(), regions.len() + windows.len() - 2, "no two have one key");
    engine.close();
}

/// Only a queue pair that asks for the maximal number of READs has memory for all of them. In this
/// test one in eight asks for it.
#[test]
fn queue_pairs_each_with_the_reads_that_it_asks_for() {
    let engine = Solo::new(&["10.0.0.1"]).engine();
    let limits = engine.query_device().expect("limits");
    assert!(limits.max_qp >= 60_000);
    let (pd, cq) = (engine.alloc_pd().expect("a PD"), cq(&engine));
    let gid = engine.query_gid(1, 0).expect("a GID");
    let reads = u8::try_from(limits.max_qp_rd_atom).expect("a byte");
    let responding = |qp: &Arc<Qp>, reads| {
        let init = ModifyQp {
            attr_mask: attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS,
            qp_state: state::INIT,
            port_num: 1,
            ..ModifyQp::default()
        };
        qp.modify(&init)?;
        qp.modify(&ModifyQp {
            attr_mask: attr::STATE
                | attr::AV
                | attr::PATH_MTU
                | attr::DEST_QPN
                | attr::RQ_PSN
                | attr::MAX_DEST_RD_ATOMIC
                | attr::MIN_RNR_TIMER,
            qp_state: state::RTR,
            dest: Dest { dgid: gid, is_global: 1, port_num: 1, hop_limit: 1, ..Dest::default() },
            path_mtu: 3,
            dest_qp_num: qp.qpn(),
            max_dest_rd_atomic: reads,
            ..ModifyQp::default()
        })
    };
    let all: Vec<Arc<Qp>> = (0..limits.max_qp).map(|_| qp(&engine, &pd, &cq).expect("a QP")).collect();
    refused(qp(&engine, &pd, &cq), Errno::ENOMEM, &["QP", &limits.max_qp.to_string()]);
    let (first, others) = all.split_first().expect("some");
    refused(responding(first, reads + 1), Errno::EINVAL, &["max_dest_rd_atomic", &reads.to_string()]);
    first.destroy().expect("it ends");
    let again = qp(&engine, &pd, &cq).expect("there is room again");
    for (index, qp) in others.iter().chain([&again]).enumerate() {
        responding(qp, if index % 8 == 0 { reads } else { 1 }).expect("RTR");
    }
    assert_eq!(limits.max_qp * u32::from(reads), limits.max_res_rd_atom, "together");
    for qp in others.iter().chain([&again]) {
        qp.destroy().expect("it ends");
    }
    for object in [cq.destroy().map(drop), pd.dealloc().map_err(Error::from)] {
        object.expect("nothing is on it any more");
    }
}

/// With users kept apart, a device reports a user's share, and the user gets this share whatever
/// other users do.
#[test]
fn device_limits_are_the_share_of_one_user() {
    let text =
        "[[devices]]\n[devices.limits]\nmax_pd = 40\nmax_cq = 80\nmax_ah = 400\nmax_mw = 120\nmax_dm_size = 4096";
    let config = agent::Config { system: true, ..agent::Config::parse(text).expect("a configuration") };
    let solo = Solo::configured(config, &["10.0.0.1"]);
    for uid in [1, 2] {
        let engine = solo.engine_of(uid);
        let told = engine.query_device_ex().expect("limits");
        let limits = told.base;
        assert_eq!((limits.max_pd, limits.max_cq, limits.max_ah, limits.max_mw), (10, 20, 100, 30));
        assert_eq!((limits, told.max_dm_size), (engine.query_device().expect("limits"), 1024));
        let pds: Vec<Arc<Pd>> = (0..limits.max_pd).map(|_| engine.alloc_pd().expect("a PD")).collect();
        refused(engine.alloc_pd(), Errno::ENOMEM, &["share of PDs", "10"]);
        let cqs: Vec<Arc<Cq>> = (0..limits.max_cq).map(|_| cq(&engine)).collect();
        let spec = CqSpec { cqe: 1, channel: None, comp_vector: 0, cookie: 1 };
        refused(engine.create_cq(&spec), Errno::ENOMEM, &["share of CQs", "20"]);
        let vector = AhAttr { dgid: [1; 16], is_global: 1, port_num: 1, hop_limit: 64, ..AhAttr::default() };
        let ahs: Vec<_> = (0..limits.max_ah).map(|_| pds[0].create_ah(&vector).expect("an AH")).collect();
        refused(pds[0].create_ah(&vector), Errno::ENOMEM, &["share of AHs", "100"]);
        let windows: Vec<_> = (0..limits.max_mw).map(|_| pds[0].alloc_mw(2).expect("a window")).collect();
        refused(pds[0].alloc_mw(2), Errno::ENOMEM, &["share of memory windows", "30"]);
        let memory = engine.alloc_dm(told.max_dm_size, 0).expect("all of it");
        refused(engine.alloc_dm(1, 0), Errno::ENOMEM, &["share of device memory"]);
        // No object is freed before the other user has come, so the counts belong to each user
        // separately.
        drop((cqs, ahs, windows, memory));
    }
}
