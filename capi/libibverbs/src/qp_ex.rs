//! Extended posting: the program builds a list of requests by calls between `wr_start` and
//! `wr_complete`, which posts the list.
//!
//! A mistake refuses the whole list: nothing of it is posted. Mistakes include an operation that
//! the program did not ask for when it made the QP, and an operation that the QP's type does not
//! have. Other threads wait from `wr_start` to `wr_complete` or `wr_abort`. Inline data is copied
//! when it is given. The principal type is [`Posting`].

use crate::address::AhObject;
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{Ah, DataBuf, Mw, MwBindInfo, Op, QpEx, Sge};
use crate::object::{get, set};
use crate::qp::QpObject;
use crate::window;
use abi::post::opcode;
use abi::post::send_flags;
use engine::{Ah as EngineAh, Bind, Feth, Flush, SendWr, Service};
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

/// The list of requests that a program is building.
pub(crate) struct Posting {
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    lock: parking_lot::RawMutex,
    /// Used only by the thread that holds the lock.
    list: UnsafeCell<List>,
}

impl Default for Posting {
    fn default() -> Self {
        Self { lock: parking_lot::RawMutex::INIT, list: UnsafeCell::new(List::default()) }
    }
}

#[derive(Default)]
struct List {
    requests: Vec<Request>,
    elements: Vec<abi::post::Sge>,
    inline: Vec<u8>,
    /// The first mistake, which `wr_complete` reports.
    fault: Option<Refusal>,
}

impl List {
    fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.inline.clear();
        self.fault = None;
    }
}

struct Request {
    head: SendWr<'static>,
    /// Which of the settable parts were set.
    set: u8,
    ud: Option<(Arc<EngineAh>, u32, u32)>,
    bind: Option<Bind>,
    data: Data,
}

/// `Request::set`: the data was set.
const DATA: u8 = 1;
/// `Request::set`: XRC's shared receive queue was set.
const SRQ: u8 = 2;

/// Where a request's data is, in the list's own vectors.
enum Data {
    Elements(Range<usize>),
    Inline(Range<usize>),
}

/// `IBV_QP_EX_WITH_*`: the operations that a QP of this service offers.
fn offered(service: Service) -> u64 {
    match service {
        // RDMA WRITE, WRITE with immediate, SEND, SEND with immediate, RDMA READ, compare and swap,
        // fetch and add, local invalidate, bind, SEND with invalidate; FLUSH, ATOMIC WRITE.
        Service::Rc => 0x1bff,
        Service::XrcIni => 0x3ff,
        Service::Uc => 0x18f,
        Service::Ud => 0x0c,
        Service::XrcTgt => 0,
    }
}

/// Refuses flags that the service does not have.
pub(crate) fn check(service: Service, send_ops_flags: u64) -> Outcome<()> {
    let missing = send_ops_flags & !offered(service);
    if missing != 0 {
        return Err(refuse!(
            EOPNOTSUPP,
            "ibv_create_qp_ex: send_ops_flags {missing:#x} are not offered on {service:?}"
        ));
    }
    Ok(())
}

/// Sets the functions that the program asked for.
pub(crate) fn fill_functions(qp: *mut QpEx, service: Service, send_ops_flags: u64) {
    let asked = |bit: u32, function: Op| if send_ops_flags >> bit & 1 != 0 { function } else { not_asked as Op };
    let of = |owner: Service, function: Op| if service == owner { function } else { not_set as Op };
    set!(qp, wr_rdma_write, asked(0, rdma_write as Op));
    set!(qp, wr_rdma_write_imm, asked(1, rdma_write_imm as Op));
    set!(qp, wr_send, asked(2, send as Op));
    set!(qp, wr_send_imm, asked(3, send_imm as Op));
    set!(qp, wr_rdma_read, asked(4, rdma_read as Op));
    set!(qp, wr_atomic_cmp_swp, asked(5, atomic_cmp_swp as Op));
    set!(qp, wr_atomic_fetch_add, asked(6, atomic_fetch_add as Op));
    set!(qp, wr_local_inv, asked(7, local_inv as Op));
    set!(qp, wr_bind_mw, asked(8, bind_mw as Op));
    set!(qp, wr_send_inv, asked(9, send_inv as Op));
    set!(qp, wr_send_tso, asked(10, not_asked as Op));
    set!(qp, wr_flush, asked(11, flush as Op));
    set!(qp, wr_atomic_write, asked(12, atomic_write as Op));
    set!(qp, wr_set_ud_addr, of(Service::Ud, set_ud_addr as Op));
    set!(qp, wr_set_xrc_srqn, of(Service::XrcIni, set_xrc_srqn as Op));
    set!(qp, wr_set_inline_data, set_inline_data as Op);
    set!(qp, wr_set_inline_data_list, set_inline_data_list as Op);
    set!(qp, wr_set_sge, set_sge as Op);
    set!(qp, wr_set_sge_list, set_sge_list as Op);
    set!(qp, wr_start, start as Op);
    set!(qp, wr_complete, complete as Op);
    set!(qp, wr_abort, abort as Op);
}

/// The list of a QP that this thread is posting to.
fn with_list<T>(qp: *mut QpEx, work: impl FnOnce(&QpObject, &mut List) -> T) -> Outcome<T> {
    // SAFETY: the program calls these functions on a live QP.
    let object = unsafe { QpObject::of(qp) }?;
    // SAFETY: between `wr_start` and `wr_complete` the calling thread holds the lock, and `work`
    // does not call this function again.
    let list = unsafe { &mut *object.inner.posting.list.get() };
    Ok(work(object, list))
}

/// Begins a request (`ibv_wr_send`, `ibv_wr_rdma_write` …). The program has set its `wr_id` and
/// flags in fields of the QP.
fn begin(qp: *mut QpEx, head: SendWr<'static>) {
    entry::quick_value("ibv_wr_*", || {
        let head = SendWr { wr_id: get!(qp, wr_id), send_flags: get!(qp, wr_flags) & !send_flags::INLINE, ..head };
        let _ = with_list(qp, |_, list| {
            let end = list.elements.len();
            list.requests.push(Request { head, set: 0, ud: None, bind: None, data: Data::Elements(end..end) });
        });
    });
}

/// Changes the most recent request.
fn change(qp: *mut QpEx, work: impl FnOnce(&mut Request, &mut Vec<abi::post::Sge>, &mut Vec<u8>) -> Outcome<()>) {
    entry::quick_value("ibv_wr_set_*", || {
        let _ = with_list(qp, |_, list| {
            let changed = match list.requests.last_mut() {
                Some(request) => work(request, &mut list.elements, &mut list.inline),
                None => Err(refuse!(EINVAL, "ibv_wr_set_*: no request was begun")),
            };
            if let Err(refusal) = changed {
                list.fault.get_or_insert(refusal);
            }
        });
    });
}

/// Notes the first mistake, which `wr_complete` reports.
fn note(qp: *mut QpEx, refusal: Refusal) {
    let _ = with_list(qp, |_, list| {
        list.fault.get_or_insert(refusal);
    });
}

/// Takes the place of every operation that the QP was not made for. It ignores its other arguments.
extern "C" fn not_asked(qp: *mut QpEx) {
    entry::quick_value("ibv_wr_*", || {
        note(qp, refuse!(EINVAL, "ibv_wr_*: an operation that send_ops_flags did not ask for when the QP was made"));
    });
}

/// Takes the place of setters that belong to other QP types.
extern "C" fn not_set(qp: *mut QpEx) {
    entry::quick_value("ibv_wr_set_*", || {
        note(qp, refuse!(EINVAL, "ibv_wr_set_*: the QP's type has no such thing to set"));
    });
}

extern "C" fn start(qp: *mut QpEx) {
    entry::quick_value("ibv_wr_start", || {
        // SAFETY: the program calls it on a live QP.
        if let Ok(object) = unsafe { QpObject::of(qp) } {
            object.inner.posting.lock.lock();
            let _ = with_list(qp, |_, list| list.clear());
        }
    });
}

extern "C" fn complete(qp: *mut QpEx) -> c_int {
    entry::quick_code("ibv_wr_complete", || {
        let posted = with_list(qp, |object, list| post(object, list));
        unlock(qp);
        posted?
    })
}

extern "C" fn abort(qp: *mut QpEx) {
    entry::quick_value("ibv_wr_abort", || unlock(qp));
}

fn unlock(qp: *mut QpEx) {
    // SAFETY: the program calls it on a live QP.
    if let Ok(object) = unsafe { QpObject::of(qp) } {
        // SAFETY: `wr_start` locked it, and this call ends that list.
        unsafe { object.inner.posting.lock.unlock() };
    }
}

fn post(object: &QpObject, list: &List) -> Outcome<()> {
    if let Some(refusal) = list.fault {
        return Err(refusal);
    }
    let queue = object.inner.queue()?;
    for request in &list.requests {
        check_setters(object.inner.service, request)?;
    }
    let mut batch = queue.send_batch()?;
    // A list of one request needs no mark: if the request is refused, nothing was posted.
    let mark = (list.requests.len() > 1).then(|| batch.mark());
    if (batch.room() as usize) < list.requests.len() {
        let (wanted, room) = (list.requests.len(), batch.room());
        return Err(refuse!(
            ENOMEM,
            "ibv_wr_complete on QP {:#x}: {wanted} requests, and the send queue has room for {room}",
            queue.qpn()
        ));
    }
    for request in &list.requests {
        let whole;
        let (sges, flags) = match &request.data {
            Data::Elements(range) => (&list.elements[range.clone()], 0),
            Data::Inline(range) => {
                let bytes = &list.inline[range.clone()];
                let length = u32::try_from(bytes.len())
                    .map_err(|_| refuse!(EINVAL, "ibv_wr_complete: inline data of 4 GiB or more"))?;
                whole = [abi::post::Sge { addr: bytes.as_ptr().expose_provenance() as u64, length, lkey: 0 }];
                (whole.as_slice(), send_flags::INLINE)
            }
        };
        let ud = request.ud.as_ref().map(|(ah, qpn, qkey)| (&**ah, *qpn, *qkey));
        let send_flags = request.head.send_flags | flags;
        let pushed = batch.push(&SendWr { sges, send_flags, ud, bind: request.bind.as_ref(), ..request.head });
        if let Err(errno) = pushed {
            // All or nothing.
            if let Some(mark) = mark {
                batch.take_back(mark);
            }
            return Err(errno.into());
        }
    }
    batch.finish();
    Ok(())
}

/// Whether a request has everything that its operation needs, and nothing else. A message without
/// data has length zero.
fn check_setters(service: Service, request: &Request) -> Outcome<()> {
    let data = request.set & DATA != 0;
    match request.head.opcode {
        opcode::LOCAL_INV | opcode::BIND_MW | opcode::FLUSH if data => {
            return Err(refuse!(EINVAL, "ibv_wr_set_*: opcode {} takes no data", request.head.opcode));
        }
        opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD if !data => {
            return Err(refuse!(EINVAL, "ibv_wr_atomic_*: it was not set where the answer goes"));
        }
        _ => {}
    }
    let sends = !matches!(request.head.opcode, opcode::LOCAL_INV | opcode::BIND_MW);
    if sends && service == Service::XrcIni && request.set & SRQ == 0 {
        return Err(refuse!(EINVAL, "ibv_wr_*: on an XRC QP without ibv_wr_set_xrc_srqn"));
    }
    Ok(())
}

/// Sets the data of a request, which is allowed once.
fn set_data(request: &mut Request, data: Data) -> Outcome<()> {
    if request.set & DATA != 0 {
        return Err(refuse!(EINVAL, "ibv_wr_set_*: the data of one request is set twice"));
    }
    request.set |= DATA;
    request.data = data;
    Ok(())
}

extern "C" fn send(qp: *mut QpEx) {
    begin(qp, SendWr { opcode: opcode::SEND, ..SendWr::default() });
}

extern "C" fn send_imm(qp: *mut QpEx, imm: u32) {
    begin(qp, SendWr { opcode: opcode::SEND_WITH_IMM, imm, ..SendWr::default() });
}

extern "C" fn send_inv(qp: *mut QpEx, invalidate_rkey: u32) {
    begin(qp, SendWr { opcode: opcode::SEND_WITH_INV, imm: invalidate_rkey, ..SendWr::default() });
}

extern "C" fn local_inv(qp: *mut QpEx, invalidate_rkey: u32) {
    begin(qp, SendWr { opcode: opcode::LOCAL_INV, imm: invalidate_rkey, ..SendWr::default() });
}

extern "C" fn bind_mw(qp: *mut QpEx, mw: *mut Mw, rkey: u32, info: *const MwBindInfo) {
    begin(qp, SendWr { opcode: opcode::BIND_MW, ..SendWr::default() });
    change(qp, |request, _, _| {
        entry::not_null(info)?;
        // SAFETY: not NULL, and valid by the program's promise; the window and the MR in it are
        // NULL or live.
        request.bind = Some(unsafe { window::posted(mw, rkey, &info.read()) }?);
        Ok(())
    });
}

extern "C" fn rdma_write(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    begin(qp, SendWr { opcode: opcode::RDMA_WRITE, rkey, remote_addr, ..SendWr::default() });
}

extern "C" fn rdma_write_imm(qp: *mut QpEx, rkey: u32, remote_addr: u64, imm: u32) {
    begin(qp, SendWr { opcode: opcode::RDMA_WRITE_WITH_IMM, rkey, remote_addr, imm, ..SendWr::default() });
}

extern "C" fn rdma_read(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    begin(qp, SendWr { opcode: opcode::RDMA_READ, rkey, remote_addr, ..SendWr::default() });
}

extern "C" fn atomic_cmp_swp(qp: *mut QpEx, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    let opcode = opcode::ATOMIC_CMP_AND_SWP;
    begin(qp, SendWr { opcode, rkey, remote_addr, compare_add: compare, swap, ..SendWr::default() });
}

extern "C" fn atomic_fetch_add(qp: *mut QpEx, rkey: u32, remote_addr: u64, add: u64) {
    begin(
        qp,
        SendWr { opcode: opcode::ATOMIC_FETCH_AND_ADD, rkey, remote_addr, compare_add: add, ..SendWr::default() },
    );
}

extern "C" fn atomic_write(qp: *mut QpEx, rkey: u32, remote_addr: u64, value: *const c_void) {
    begin(qp, SendWr { opcode: opcode::ATOMIC_WRITE, rkey, remote_addr, ..SendWr::default() });
    let word = DataBuf { addr: value.cast_mut(), length: 8 };
    set_inline_data_list(qp, 1, &raw const word);
}

extern "C" fn flush(qp: *mut QpEx, rkey: u32, remote_addr: u64, length: usize, placement: u8, selectivity: u8) {
    let feth = Feth { placement, selectivity };
    // Longer than any request may be. The completion reports this.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let flush = Flush { length, feth };
    begin(qp, SendWr { opcode: opcode::FLUSH, rkey, remote_addr, flush, ..SendWr::default() });
}

extern "C" fn set_ud_addr(qp: *mut QpEx, ah: *mut Ah, remote_qpn: u32, remote_qkey: u32) {
    change(qp, |request, _, _| {
        // SAFETY: NULL, or an AH that the program keeps live while it posts.
        let ah = unsafe { AhObject::of(ah) }?;
        request.ud = Some((Arc::clone(&ah.inner), remote_qpn, remote_qkey));
        Ok(())
    });
}

extern "C" fn set_xrc_srqn(qp: *mut QpEx, remote_srqn: u32) {
    change(qp, |request, _, _| {
        request.head.xrc_srq = remote_srqn;
        request.set |= SRQ;
        Ok(())
    });
}

extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    change(qp, |request, elements, _| {
        let begin = elements.len();
        elements.push(abi::post::Sge { addr, length, lkey });
        set_data(request, Data::Elements(begin..elements.len()))
    });
}

extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    change(qp, |request, elements, _| {
        let begin = elements.len();
        for index in 0..count {
            let element = list.wrapping_add(index);
            entry::not_null(element)?;
            // SAFETY: the program's list has `count` elements.
            let Sge { addr, length, lkey } = unsafe { element.read() };
            elements.push(abi::post::Sge { addr, length, lkey });
        }
        set_data(request, Data::Elements(begin..elements.len()))
    });
}

extern "C" fn set_inline_data(qp: *mut QpEx, addr: *mut c_void, length: usize) {
    let buffer = DataBuf { addr, length };
    set_inline_data_list(qp, 1, &raw const buffer);
}

extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    change(qp, |request, _, inline| {
        let begin = inline.len();
        for index in 0..count {
            let element = list.wrapping_add(index);
            entry::not_null(element)?;
            // SAFETY: the program's list has `count` elements.
            let DataBuf { addr, length } = unsafe { element.read() };
            if length == 0 {
                continue;
            }
            entry::not_null(addr)?;
            // SAFETY: the program's buffer has `length` bytes.
            inline.extend_from_slice(unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), length) });
        }
        set_data(request, Data::Inline(begin..inline.len()))
    });
}
