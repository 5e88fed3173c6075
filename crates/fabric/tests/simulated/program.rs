//! A program of the simulation: an engine, its queues, and its receive buffers. The principal types
//! are [`Program`] and [`Slots`].

use std::sync::Arc;

use abi::cq::Wc;
use abi::post::Sge;
use engine::{Channel, Cq, CqSpec, Engine, Mr, Pd, RecvWr, Srq, SrqSpec, Xrcd};
use fabric::simulation::Memory;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Bytes of a receive buffer.
pub(crate) const SLOT: usize = 12 * 1024;
/// The byte that fills a receive buffer before a message arrives.
pub(crate) const EMPTY: u8 = 0xee;
/// Marks the completions of receives. The lower bits are the buffer's number.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// Marks the completions of receives from a shared queue.
pub(crate) const SHARED: u64 = 1 << 62;
/// Local write, every remote right, windows and FLUSH.
pub(crate) const RIGHTS: u32 = 0x1f | 0x100;

/// Receive buffers.
pub(crate) struct Slots {
    memory: Memory,
    mr: Arc<Mr>,
    iova: u64,
    /// The buffers that are posted.
    posted: Vec<bool>,
    mark: u64,
}

impl Slots {
    pub(crate) fn new(pd: &Arc<Pd>, count: usize, iova: u64, mark: u64) -> Self {
        let memory = Memory::new(count * SLOT);
        let mr = pd.reg_mr(memory.address(), memory.len() as u64, iova, RIGHTS).expect("an MR");
        Self { memory, mr, iova, posted: vec![false; count], mark }
    }

    /// A buffer that is not posted.
    pub(crate) fn free(&self) -> Option<usize> {
        self.posted.iter().position(|posted| !posted)
    }

    /// Posts a buffer with `post`, split into two elements at `split`.
    pub(crate) fn post(
        &mut self,
        slot: usize,
        split: usize,
        post: impl FnOnce(&RecvWr<'_>) -> Result<(), engine::PostError>,
    ) {
        self.posted[slot] = true;
        self.memory.fill(slot * SLOT, SLOT, EMPTY);
        let at = self.iova + (slot * SLOT) as u64;
        let lkey = self.mr.lkey();
        let sges = [Sge::new(at, split as u32, lkey), Sge::new(at + split as u64, (SLOT - split) as u32, lkey)];
        let sges = if split == 0 { &sges[1..] } else { &sges[..] };
        post(&RecvWr { wr_id: RECEIVE | self.mark | slot as u64, sges }).expect("room");
    }

    /// Marks a buffer as no longer posted, and returns its number.
    pub(crate) fn take_back(&mut self, wr_id: u64) -> Result<usize, String> {
        let slot = (wr_id & 0xffff) as usize;
        match self.posted.get_mut(slot).map(std::mem::take) {
            Some(true) => Ok(slot),
            _ => Err(format!("receive request {wr_id:#x} completes although it is not posted")),
        }
    }

    pub(crate) fn bytes(&self, slot: usize, at: usize, len: usize) -> Vec<u8> {
        self.memory.bytes(slot * SLOT + at, len.min(SLOT - at))
    }
}

/// One program.
pub(crate) struct Program {
    pub(crate) engine: Arc<Engine>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    channel: Option<Arc<Channel>>,
    /// The program has died.
    pub(crate) is_dead: bool,
    /// The program has armed the CQ, and sleeps until the event.
    asleep: bool,
    pub(crate) srq: Arc<Srq>,
    pub(crate) slots: Slots,
    pub(crate) xrcd: Arc<Xrcd>,
    pub(crate) xrc_srq: Arc<Srq>,
    pub(crate) xrc_slots: Slots,
}

/// Marks the buffers of the XRC queue among the shared buffers.
pub(crate) const XRC: u64 = 1 << 61;

impl Program {
    pub(crate) fn new(engine: Arc<Engine>, sleeps: bool, one_cq: bool) -> Self {
        let pd = engine.alloc_pd().expect("a PD");
        let channel = sleeps.then(|| engine.create_channel().expect("a channel"));
        if let Some(channel) = &channel {
            let flags = fcntl_getfl(channel.fd()).expect("flags");
            fcntl_setfl(channel.fd(), flags | OFlags::NONBLOCK).expect("flags");
        }
        let cq = || {
            let spec = CqSpec { cqe: 512, channel: channel.as_ref(), comp_vector: 0, cookie: 1 };
            engine.create_cq(&spec).expect("a CQ")
        };
        let send_cq = cq();
        let recv_cq = if one_cq || sleeps { Arc::clone(&send_cq) } else { cq() };
        let spec = SrqSpec { max_wr: 16, max_sge: 2, cookie: 3 };
        let srq = engine.create_srq(&pd, &spec).expect("an SRQ");
        let xrcd = engine.open_xrcd(None, 0o100).expect("a domain");
        let xrc_srq = engine.create_xrc_srq(&pd, &xrcd, &recv_cq, &spec).expect("an SRQ");
        let slots = Slots::new(&pd, 16, 0x5000_0000, SHARED);
        let xrc_slots = Slots::new(&pd, 16, 0x6000_0000, SHARED | XRC);
        Self {
            engine,
            pd,
            send_cq,
            recv_cq,
            channel,
            is_dead: false,
            asleep: false,
            srq,
            slots,
            xrcd,
            xrc_srq,
            xrc_slots,
        }
    }

    /// Polls some completions. A sleeping program polls nothing until an event wakes it.
    pub(crate) fn poll(&mut self) -> Vec<Wc> {
        if self.is_dead {
            return Vec::new();
        }
        if self.asleep {
            if self.channel.as_ref().is_some_and(|channel| channel.next_event().is_err()) {
                return Vec::new();
            }
            self.asleep = false;
        }
        let mut found = self.take();
        if found.is_empty() && self.channel.is_some() {
            self.send_cq.req_notify(false).expect("armed");
            // A completion from before the CQ was armed raises no event.
            found = self.take();
            self.asleep = found.is_empty();
        }
        found
    }

    fn take(&self) -> Vec<Wc> {
        let mut wcs = [Wc::default(); 8];
        let mut found = Vec::new();
        let mut cqs = vec![&self.send_cq];
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            cqs.push(&self.recv_cq);
        }
        for cq in cqs {
            let count = cq.poll(&mut wcs).expect("a device");
            found.extend_from_slice(&wcs[..count]);
        }
        found
    }
}
