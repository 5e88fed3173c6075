//! Objects whose memory this process cannot map: the call fails, and the agent keeps nothing.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::errno::Errno;
use engine::{Caps, CqSpec, QpSpec, Service, SrqSpec};
use parking_lot::Mutex;

use super::direct::{Delivery, Solo};
use crate::common;

/// Entries for which no region of queue memory has room beside another object.
const MANY: u32 = 4095;

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
