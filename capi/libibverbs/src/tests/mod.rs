//! The exported functions against a real agent in this process: the results that programs get,
//! value by value. The suite tests the traffic of unmodified programs; these tests are for cases
//! that such programs do not reach.

mod batches;
mod extended;
mod gone;
mod newer;
mod numbers;
mod objects;
mod parent;
mod refusals;
mod sharing;
mod traffic;

use crate::layout::{Context, Cq, Gid, Mr, Pd, Qp, QpAttr, QpCap, QpInitAttr, Wc};
use crate::{channel, cq, device, devices, memory, object, pd, qp, query, sysfs};
use abi::qp::attr;
use agent::{Agent, AgentHandle, Config};
use bytemuck::Zeroable;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Calls a function of the C interface. Every test passes its own live objects and memory that it
/// owns.
macro_rules! call {
    ($($call:tt)+) => {{
        $crate::entry::set_errno($crate::entry::Refusal(0));
        // SAFETY: tests pass live objects and valid memory, or NULL where the test is about NULL.
        unsafe { $($call)+ }
    }};
}
use call;

/// The calling thread's `errno`.
fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An agent that serves this process's run directory while tests use it.
struct Rig {
    _agent: AgentHandle,
    directory: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The agent of this process: started by the first test that needs it, stopped by the last.
fn rig() -> Arc<Rig> {
    static RIG: Mutex<Weak<Rig>> = Mutex::new(Weak::new());
    let mut shared = RIG.lock();
    shared.upgrade().unwrap_or_else(|| {
        let directory = std::env::temp_dir().join(format!("softhca-capi-{}", std::process::id()));
        sysfs::use_directory(&directory);
        let agent = Agent::start(&Config::default(), Some(&directory)).expect("an agent starts in an empty directory");
        let rig = Arc::new(Rig { _agent: agent, directory });
        *shared = Arc::downgrade(&rig);
        rig
    })
}

/// An open device with a PD, a CQ of 16 entries, and a page of memory with every right.
struct Device {
    context: *mut Context,
    pd: *mut Pd,
    cq: *mut Cq,
    mr: *mut Mr,
    memory: Box<[u64; 512]>,
    _rig: Arc<Rig>,
}

/// Every access right of a region or QP.
const ALL_RIGHTS: u32 = 15 | abi::mr::access::FLUSH_GLOBAL;

impl Device {
    fn open() -> Self {
        let rig = rig();
        let mut count = 0;
        let list = call!(devices::get_device_list(&raw mut count));
        assert_eq!(count, 1);
        let first = call!(list.read());
        let context = call!(device::open_device(first));
        assert!(!context.is_null(), "errno {}", errno());
        call!(devices::free_device_list(list));
        let pd = call!(pd::alloc(context));
        let cq = call!(cq::create(context, 16, std::ptr::null_mut(), std::ptr::null_mut(), 0));
        let mut memory = Box::new([0; 512]);
        let mr = call!(memory::reg(pd, memory.as_mut_ptr().cast(), 4096, ALL_RIGHTS.cast_signed()));
        assert!(!pd.is_null() && !cq.is_null() && !mr.is_null(), "errno {}", errno());
        Self { context, pd, cq, mr, memory, _rig: rig }
    }

    fn gid(&self) -> Gid {
        let mut gid = Gid([0; 16]);
        assert_eq!(call!(query::query_gid(self.context, 1, 0, &raw mut gid)), 0);
        gid
    }

    /// The attributes of a test's QPs: 4 requests each way, 2 elements, 16 bytes inline.
    fn init(&self, qp_type: u8) -> QpInitAttr {
        QpInitAttr {
            send_cq: self.cq,
            recv_cq: self.cq,
            cap: QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 16 },
            qp_type: u32::from(qp_type),
            ..QpInitAttr::zeroed()
        }
    }

    fn qp(&self, qp_type: u8) -> *mut Qp {
        let mut init = self.init(qp_type);
        let qp = call!(qp::create(self.pd, &raw mut init));
        assert!(!qp.is_null(), "errno {}", errno());
        qp
    }

    /// Takes an RC QP to RTS, connected to the QP numbered `peer`.
    fn connect(&self, qp: *mut Qp, peer: u32) {
        let mut attr = QpAttr { qp_access_flags: ALL_RIGHTS, port_num: 1, dest_qp_num: peer, ..QpAttr::zeroed() };
        (attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (3, 14, 7, 7);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 1, 1);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = self.gid();
        let to_init = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let to_rtr = attr::STATE
            | attr::AV
            | attr::PATH_MTU
            | attr::DEST_QPN
            | attr::RQ_PSN
            | attr::MAX_DEST_RD_ATOMIC
            | attr::MIN_RNR_TIMER;
        let to_rts =
            attr::STATE | attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::SQ_PSN | attr::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(1, to_init), (2, to_rtr), (3, to_rts)] {
            attr.qp_state = state;
            assert_eq!(call!(qp::modify(qp, &raw mut attr, mask.cast_signed())), 0, "to state {state}");
        }
    }

    /// An RC QP that is connected to itself.
    fn loopback(&self) -> *mut Qp {
        let qp = self.qp(abi::qp::kind::RC);
        self.connect(qp, object::get!(qp, qp_num));
        qp
    }

    /// Polls until `count` completions have come.
    fn completions(&self, count: usize) -> Vec<Wc> {
        let mut all = Vec::new();
        let started = std::time::Instant::now();
        while all.len() < count {
            let mut room = [Wc::zeroed(); 8];
            let polled = call!(cq::poll(self.cq, 8, room.as_mut_ptr()));
            all.extend_from_slice(&room[..usize::try_from(polled).expect("poll succeeds")]);
            assert!(started.elapsed().as_secs() < 20, "{} of {count} completions came", all.len());
        }
        all
    }

    /// An element of the device's page.
    fn element(&self, offset: usize, length: u32) -> crate::layout::Sge {
        let addr = (&raw const self.memory[offset / 8]).expose_provenance() as u64;
        crate::layout::Sge { addr, length, lkey: object::get!(self.mr, lkey) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(call!(memory::dereg(self.mr)), 0);
            assert_eq!(call!(cq::destroy(self.cq)), 0);
            assert_eq!(call!(pd::dealloc(self.pd)), 0);
        }
        assert_eq!(call!(device::close_device(self.context)), 0);
    }
}

/// A completion channel of `device`.
fn channel_of(device: &Device) -> *mut crate::layout::CompChannel {
    let made = call!(channel::create(device.context));
    assert!(!made.is_null(), "errno {}", errno());
    made
}
