//! Objects whose memory this process cannot map: the call fails, and the agent keeps nothing.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::errno::Errno;
use abi::mr::access;
use abi::srq::attr;
use engine::{Caps, CqSpec, QpSpec, Service, SrqSpec};
use parking_lot::Mutex;

use super::direct::{Delivery, Solo};
use crate::common;

/// Entries for which no region of queue memory has room beside another object.
const MANY: u32 = 4095;
/// The same for the requests of an SRQ; a device allows no more.
const MANY_REQUESTS: u32 = 16_384;

/// The descriptors come, but they cannot be mapped.
fn damaged(fds: Vec<OwnedFd>) -> Vec<OwnedFd> {
    fds.into_iter().map(|_| File::open("/dev/null").expect("a descriptor").into()).collect()
}

/// The descriptors are lost.
fn lost(_: Vec<OwnedFd>) -> Vec<OwnedFd> {
    Vec::new()
}

/// `make` fails while descriptors come as `spoilt`, and works when they come whole.
fn fails_and_works<T>(what: &str, delivery: &Mutex<Delivery>, spoilt: Delivery, make: impl Fn() -> engine::Result<T>) {
    *delivery.lock() = spoilt;
    let refused = make().err().unwrap_or_else(|| panic!("the memory of {what} cannot be mapped"));
    assert_eq!(refused.errno == Errno::EMFILE, spoilt(vec![File::open("/dev/null").expect("one").into()]).is_empty());
    *delivery.lock() = whole;
    let made = make();
    assert!(made.is_ok(), "the agent placed it in memory that is not mapped: {:?}", made.err());
}

fn whole(fds: Vec<OwnedFd>) -> Vec<OwnedFd> {
    fds
}

/// The queue keeps its memory, its size and its entries, and the agent knows it.
#[test]
fn a_queue_that_cannot_be_resized_stays_as_it_is() {
    let solo = Solo::new(&["10.0.0.1"]);
    for spoilt in [damaged as Delivery, lost] {
        let delivery: Arc<Mutex<Delivery>> = Arc::new(Mutex::new(whole));
        let engine = solo.engine_with(0, &delivery);
        let pd = engine.alloc_pd().expect("a PD");
        let srq = engine.create_srq(&pd, &SrqSpec { max_wr: 4, max_sge: 1, cookie: 0 }).expect("an SRQ");
        let cq = common::cq(&engine, 7);
        for _ in 0..3 {
            *delivery.lock() = spoilt;
            let cq_error = cq.resize(MANY * 8).expect_err("its memory cannot be mapped");
            let srq_error = srq.modify(attr::MAX_WR, MANY_REQUESTS, 0).expect_err("its memory cannot be mapped");
            *delivery.lock() = whole;
            assert_eq!([cq_error.errno, srq_error.errno], [srq_error.errno; 2]);
            assert_eq!(srq.query().expect("known").max_wr, 4, "the agent has the old size");
            // What is made now is in memory that is mapped.
            common::cq(&engine, 1).destroy().expect("unused");
        }
        assert_eq!(cq.resize(MANY * 8).expect("room"), (MANY * 8).next_power_of_two());
        srq.modify(attr::MAX_WR, MANY_REQUESTS, 0).expect("room");
        assert_eq!(srq.query().expect("known").max_wr, MANY_REQUESTS);
        cq.destroy().expect("unused");
        srq.destroy().expect("unused");
    }
}

/// The agent has made the MR, whose descriptor does not come.
#[test]
fn an_imported_mr_without_its_descriptor_leaves_nothing() {
    let solo = Solo::new(&["10.0.0.1"]);
    let owner = solo.engine();
    let pd = owner.alloc_pd().expect("a PD");
    let dm = owner.alloc_dm(4096, 0).expect("device memory");
    let mr = pd.reg_dm_mr(&dm, 0, 4096, access::ZERO_BASED).expect("an MR");
    for spoilt in [damaged as Delivery, lost] {
        let delivery: Arc<Mutex<Delivery>> = Arc::new(Mutex::new(whole));
        let engine = solo.engine_with(0, &delivery);
        engine.import(owner.share()).expect("it is of this device");
        let imported = engine.import_pd(pd.handle()).expect("it is there");
        *delivery.lock() = spoilt;
        let refused = imported.import_mr(mr.handle()).err().expect("it cannot be mapped");
        assert!(refused.reason.contains(&format!("MR {}", mr.handle())), "{}", refused.reason);
        *delivery.lock() = whole;
        // A PD with an MR could not be deallocated.
        imported.import_mr(mr.handle()).expect("it comes whole").dereg().expect("unused");
        imported.dealloc().expect("no MR is on it");
    }
}

#[test]
fn an_object_whose_memory_is_not_mapped_leaves_nothing() {
    let solo = Solo::new(&["10.0.0.1"]);
    for spoilt in [damaged as Delivery, lost] {
        let delivery: Arc<Mutex<Delivery>> = Arc::new(Mutex::new(whole));
        let open = || (solo.engine_with(0, &delivery), &*delivery);
        let (engine, at) = open();
        fails_and_works("a CQ", at, spoilt, || {
            engine.create_cq(&CqSpec { cqe: 1, channel: None, comp_vector: 0, cookie: 0 })
        });

        let (engine, at) = open();
        let pd = engine.alloc_pd().expect("a PD");
        fails_and_works("an SRQ", at, spoilt, || engine.create_srq(&pd, &SrqSpec { max_wr: 1, max_sge: 1, cookie: 0 }));

        let (engine, at) = open();
        let (pd, cq) = (engine.alloc_pd().expect("a PD"), common::cq(&engine, MANY));
        let caps = Caps { max_send_wr: MANY, max_recv_wr: MANY, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let spec =
            QpSpec { service: Service::Rc, send_cq: &cq, recv_cq: &cq, srq: None, caps, sq_sig_all: true, cookie: 2 };
        fails_and_works("a QP", at, spoilt, || engine.create_qp(&pd, &spec));
    }
}
