//! The verbs of the data path, as rsockets use them: registered memory, a completion queue with its
//! channel, a queue pair to post to, address handles. They call the C functions of
//! `libibverbs.so.1` or those in a context's operations. The principal types are [`Completions`]
//! and [`Queue`].

use super::waiting::borrowed;
use crate::entry::{Outcome, Refusal};
use crate::layout::{
    Ah, AhAttr, CompChannel, Context, Cq, Gid, Mr, Op, Pd, PortAttr, Qp, RecvWr, SendWr, Sge, Wc, WrRdma, WrTarget,
    WrUd,
};
use crate::verbs::{self, last_error, made};
use bytemuck::Zeroable;
use rsocket::Message;
use rsocket::stream::{Transfer, Work};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

unsafe extern "C" {
    fn ibv_reg_mr(pd: *mut Pd, start: *mut c_void, length: usize, access: c_int) -> *mut Mr;
    fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, context: *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint);
    fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah;
    fn ibv_destroy_ah(ah: *mut Ah) -> c_int;
    fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int;
    fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
}

type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// The access rights of registered memory (`enum ibv_access_flags`).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    /// Access by local work requests.
    Local = 1,
    /// Also writes by the peer.
    RemoteWrite = 1 | 2,
}

/// A registration.
pub(crate) struct Registered {
    pub(crate) mr: *mut Mr,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// Registers memory.
pub(crate) fn register(pd: *mut Pd, start: *mut u8, length: usize, access: Access) -> Outcome<Registered> {
    // SAFETY: the PD is live as long as its id's device is open; the engine handles memory that is
    // not mapped.
    let mr = made(unsafe { ibv_reg_mr(pd, start.cast(), length, access as c_int) })?;
    // SAFETY: just made.
    let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
    Ok(Registered { mr, lkey, rkey })
}

/// Ends a registration.
pub(crate) fn deregister(mr: *mut Mr) {
    // SAFETY: made by `register`; its owner ends it once.
    let _ = unsafe { ibv_dereg_mr(mr) };
}

/// A completion queue and its channel, which is nonblocking.
pub(crate) struct Completions {
    channel: *mut CompChannel,
    cq: *mut Cq,
    poll: PollCq,
    notify: RequestNotify,
    /// The number of events that were taken and not acknowledged.
    taken: AtomicU32,
}

// SAFETY: any thread may call the functions of a CQ and its channel.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// Makes a queue with this many entries.
    pub(crate) fn new(context: *mut Context, entries: u32) -> Outcome<Self> {
        // SAFETY: an id's context stays open.
        let ops = unsafe { &raw const (*context).ops };
        // SAFETY: libibverbs keeps functions of these signatures there.
        let (poll, notify) = unsafe {
            (
                std::mem::transmute::<Op, PollCq>((*ops).poll_cq),
                std::mem::transmute::<Op, RequestNotify>((*ops).req_notify_cq),
            )
        };
        // SAFETY: as above.
        let channel = made(unsafe { verbs::ibv_create_comp_channel(context) })?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: as above; the channel is new.
        let cq = made(unsafe { verbs::ibv_create_cq(context, entries, std::ptr::null_mut(), channel, 0) });
        let cq = cq.inspect_err(|_| {
            // SAFETY: no CQ uses it.
            let _ = unsafe { verbs::ibv_destroy_comp_channel(channel) };
        })?;
        let made = Self { channel, cq, poll, notify, taken: AtomicU32::new(0) };
        never_waits(made.fd())?;
        Ok(made)
    }

    /// The CQ, to make a queue pair with it.
    pub(crate) fn cq(&self) -> *mut Cq {
        self.cq
    }

    /// The channel's descriptor, which is readable when an event waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: live.
        borrowed(unsafe { (*self.channel).fd })
    }

    /// Polls completions, and returns their number.
    pub(crate) fn poll(&self, room: &mut [Wc]) -> usize {
        let most = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: live, and `room` has `most` entries.
        let count = unsafe { (self.poll)(self.cq, most, room.as_mut_ptr()) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&self) {
        // SAFETY: live.
        let _ = unsafe { (self.notify)(self.cq, 0) };
    }

    /// Takes an event, if one waits.
    pub(crate) fn take_event(&self) -> bool {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: live; `cq` and `context` are local variables.
        let taken = unsafe { ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) } == 0;
        if taken && self.taken.fetch_add(1, Ordering::Relaxed) >= 1000 {
            self.acknowledge();
        }
        taken
    }

    fn acknowledge(&self) {
        let count = self.taken.swap(0, Ordering::Relaxed);
        if count > 0 {
            // SAFETY: live, and this many events were taken.
            unsafe { ibv_ack_cq_events(self.cq, count) };
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: the queue pair was destroyed before; nothing uses them any more.
        unsafe {
            let _ = verbs::ibv_destroy_cq(self.cq);
            let _ = verbs::ibv_destroy_comp_channel(self.channel);
        }
    }
}

/// Sets O_NONBLOCK on a descriptor.
pub(crate) fn never_waits(fd: BorrowedFd<'_>) -> Outcome<()> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(super::waiting::refusal)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(super::waiting::refusal)
}

/// Where a receive puts its data: address, length and key.
pub(crate) type Place = (u64, u32, u32);

/// `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_WRITE_WITH_IMM`, `IBV_WR_SEND`.
const RDMA_WRITE: u32 = 0;
const RDMA_WRITE_WITH_IMM: u32 = 1;
const SEND: u32 = 2;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`.
const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;
/// `RDMA_UDP_QKEY`.
const UDP_QKEY: u32 = 0x0123_4567;

/// The data of a work request: addresses, lengths and keys of up to two pieces.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pieces: [Sge; 2],
    count: c_int,
    inline: bool,
}

impl Load {
    /// No data.
    pub(crate) const EMPTY: Self = Self { pieces: [Sge { addr: 0, length: 0, lkey: 0 }; 2], count: 0, inline: false };

    /// Inline bytes, which posting copies. They may be in any memory.
    pub(crate) fn inline(start: *const u8, length: u32) -> Self {
        let piece = Sge { addr: start.expose_provenance() as u64, length, lkey: 0 };
        Self { pieces: [piece, Self::EMPTY.pieces[1]], count: 1, inline: true }
    }

    /// Makes this the data of a work request. It must stay where it is until the request is posted.
    fn put_into(&mut self, wr: &mut SendWr, flags: u32) {
        wr.sg_list = self.pieces.as_mut_ptr();
        wr.num_sge = self.count;
        wr.send_flags = flags | if self.inline { INLINE } else { 0 };
    }

    /// Pieces of registered memory. An empty second piece is left out.
    pub(crate) fn pieces(key: u32, first: (u64, u32), second: (u64, u32)) -> Self {
        let piece = |(addr, length)| Sge { addr, length, lkey: key };
        Self { pieces: [piece(first), piece(second)], count: if second.1 > 0 { 2 } else { 1 }, inline: false }
    }
}

/// A queue pair to post to.
pub(crate) struct Queue {
    qp: *mut Qp,
    send: PostSend,
    receive: PostRecv,
    /// Messages are SENDs, because there is no immediate data.
    sends: bool,
}

// SAFETY: any thread may call the functions of a queue pair.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// The queue pair of an id. The id must outlive the result. `sends`: messages are SENDs.
    pub(crate) fn new(context: *mut Context, qp: *mut Qp, sends: bool) -> Self {
        // SAFETY: an id's context stays open; libibverbs keeps functions of these signatures there.
        let (send, receive) = unsafe {
            let ops = &raw const (*context).ops;
            (
                std::mem::transmute::<Op, PostSend>((*ops).post_send),
                std::mem::transmute::<Op, PostRecv>((*ops).post_recv),
            )
        };
        Self { qp, send, receive, sends }
    }

    /// The QP number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: live.
        unsafe { (*self.qp).qp_num }
    }

    /// Whether messages are SENDs.
    pub(crate) fn sends(&self) -> bool {
        self.sends
    }

    /// Posts a transfer of a connection.
    pub(crate) fn transfer(&self, transfer: &Transfer, mut load: Load) -> Outcome<()> {
        let mut wr = SendWr::zeroed();
        wr.wr_id = transfer.work.id();
        wr.wr = WrTarget { rdma: WrRdma { remote_addr: transfer.address, rkey: transfer.key } };
        match transfer.message {
            Some(message) if self.sends => return self.write_and_send(wr, &mut load, message),
            Some(message) => {
                wr.opcode = RDMA_WRITE_WITH_IMM;
                wr.imm_data = message.emit().to_be();
            }
            None => wr.opcode = RDMA_WRITE,
        }
        self.post(&mut wr, &mut load, SIGNALED)
    }

    /// Posts a WRITE, if there is data, and the SEND of its message.
    fn write_and_send(&self, mut write: SendWr, load: &mut Load, message: Message) -> Outcome<()> {
        let bytes = message.to_send();
        let mut word = Load::inline(bytes.as_ptr(), bytes.len() as u32);
        let mut send = SendWr::zeroed();
        (send.wr_id, send.opcode) = (write.wr_id, SEND);
        if load.count == 0 {
            return self.post(&mut send, &mut word, SIGNALED);
        }
        word.put_into(&mut send, SIGNALED);
        (write.wr_id, write.opcode, write.next) = (Work::Written.id(), RDMA_WRITE, &raw mut send);
        self.post(&mut write, load, 0)
    }

    /// Sends a datagram.
    pub(crate) fn datagram(&self, id: u64, ah: *mut Ah, qpn: u32, mut load: Load) -> Outcome<()> {
        let mut wr = SendWr::zeroed();
        wr.wr_id = id;
        wr.opcode = SEND;
        wr.wr = WrTarget { ud: WrUd { ah, remote_qpn: qpn, remote_qkey: UDP_QKEY } };
        self.post(&mut wr, &mut load, SIGNALED)
    }

    /// Posts a request with its data, and the requests that it points to.
    fn post(&self, wr: &mut SendWr, load: &mut Load, flags: u32) -> Outcome<()> {
        load.put_into(wr, flags);
        let mut bad = std::ptr::null_mut();
        // SAFETY: live; the requests and their lists are complete.
        verbs::done(unsafe { (self.send)(self.qp, wr, &raw mut bad) })
    }

    /// Posts receives of messages: their numbers, and buffers for those that come as SENDs.
    pub(crate) fn receive_words(&self, words: impl Iterator<Item = (u32, Option<Place>)>) -> Outcome<()> {
        const MOST: usize = 32;
        let mut words = words.peekable();
        while words.peek().is_some() {
            let mut list = [RecvWr::zeroed(); MOST];
            let mut pieces = [Load::EMPTY.pieces[0]; MOST];
            let mut count = 0;
            for ((wr, piece), (number, place)) in list.iter_mut().zip(&mut pieces).zip(&mut words) {
                wr.wr_id = Work::Receive { word: number }.id();
                if let Some((addr, length, lkey)) = place {
                    *piece = Sge { addr, length, lkey };
                    (wr.sg_list, wr.num_sge) = (piece, 1);
                }
                count += 1;
            }
            let start = list.as_mut_ptr();
            for (index, wr) in list.iter_mut().take(count - 1).enumerate() {
                wr.next = start.wrapping_add(index + 1);
            }
            let mut bad = std::ptr::null_mut();
            // SAFETY: live; the list is complete, and each entry but the last points to the next.
            verbs::done(unsafe { (self.receive)(self.qp, start, &raw mut bad) })?;
        }
        Ok(())
    }

    /// Posts a receive for a datagram: the GRH goes to the first piece, the rest to the second.
    pub(crate) fn receive_datagram(&self, id: u64, key: u32, grh: (u64, u32), data: (u64, u32)) -> Outcome<()> {
        let mut load = Load::pieces(key, grh, data);
        let mut wr = RecvWr::zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (id, load.pieces.as_mut_ptr(), load.count);
        let mut bad = std::ptr::null_mut();
        // SAFETY: live; the request and its list are complete.
        verbs::done(unsafe { (self.receive)(self.qp, &raw mut wr, &raw mut bad) })
    }
}

/// An address handle.
pub(crate) struct Handle(*mut Ah);

// SAFETY: any thread may use and destroy it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Makes an address handle.
    pub(crate) fn new(pd: *mut Pd, mut attr: AhAttr) -> Outcome<Self> {
        // SAFETY: the PD is live, and the attributes are complete.
        made(unsafe { ibv_create_ah(pd, &raw mut attr) }).map(Self)
    }

    /// The handle as a pointer for a work request.
    pub(crate) fn as_ptr(&self) -> *mut Ah {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `new`; posted requests have copied the data that they need.
        let _ = unsafe { ibv_destroy_ah(self.0) };
    }
}

/// The index of a GID in a port's table.
pub(crate) fn gid_index(context: *mut Context, port: u8, gid: Gid) -> Outcome<u8> {
    let mut found = Gid::zeroed();
    let index = (0..128_u8).find(|index| {
        // SAFETY: an id's context stays open, and `found` is a local variable.
        unsafe { ibv_query_gid(context, port, c_int::from(*index), &raw mut found) == 0 && found == gid }
    });
    index.ok_or(Refusal(libc::EADDRNOTAVAIL))
}

/// The MTU of a port, in bytes.
pub(crate) fn port_mtu(context: *mut Context, port: u8) -> Outcome<usize> {
    let mut attr = PortAttr::zeroed();
    // SAFETY: an id's context stays open, and `attr` is a local variable.
    let code = unsafe { ibv_query_port(context, port, &raw mut attr) };
    if code == 0 { Ok(128 << attr.active_mtu.min(5)) } else { Err(last_error()) }
}
