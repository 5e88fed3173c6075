//! Queue pairs: creating, modifying, querying, destroying. Posting is in `post`. The principal type
//! is [`QpObject`].

use crate::acks::Acks;
use crate::address;
use crate::context::OpenContext;
use crate::cq;
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{
    AhAttr, Context, Gid, GlobalRoute, Pd, Qp, QpAttr, QpCap, QpEx, QpInitAttr, QpInitAttrEx, QpRateLimitAttr,
};
use crate::object::{Object, cookie, get, set};
use crate::pd::PdObject;
use crate::qp_ex::{self, Posting};
use crate::srq::SrqObject;
use crate::xrc;
use abi::qp::{Dest, ModifyQp, QueryQpAnswer, attr, kind};
use bytemuck::Zeroable;
use engine::{Caps, Hold, InitiatorSpec, Qp as EngineQp, QpSpec, RateLimit, Service};
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, OnceLock};

/// `struct ibv_qp_ex`, which begins with `struct ibv_qp`, and the engine's QP.
pub(crate) type QpObject = Object<QpEx, QpState>;

/// This library's data about a QP.
pub(crate) struct QpState {
    /// Set once, before the program gets the pointer.
    queue: OnceLock<Arc<EngineQp>>,
    /// Only for an XRC target: the hold on it.
    hold: OnceLock<Arc<Hold>>,
    pub(crate) service: Service,
    /// Whether it was made for the extended posting functions.
    extended: bool,
    /// The requests that these functions collect.
    pub(crate) posting: Posting,
    /// Events that the program has acknowledged.
    pub(crate) acks: Acks,
}

impl QpState {
    fn new(service: Service, extended: bool) -> Self {
        Self {
            queue: OnceLock::new(),
            hold: OnceLock::new(),
            service,
            extended,
            posting: Posting::default(),
            acks: Acks::default(),
        }
    }

    /// The engine's QP.
    pub(crate) fn queue(&self) -> Outcome<&Arc<EngineQp>> {
        self.queue.get().ok_or(Refusal(libc::EINVAL))
    }

    /// Whether it is a UD QP.
    pub(crate) fn is_datagram(&self) -> bool {
        self.service == Service::Ud
    }
}

/// `IBV_QP_INIT_ATTR_PD`, `IBV_QP_INIT_ATTR_XRCD`, `IBV_QP_INIT_ATTR_CREATE_FLAGS` and
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const INIT_PD: u32 = 1;
const INIT_XRCD: u32 = 2;
const INIT_CREATE_FLAGS: u32 = 4;
const INIT_SEND_OPS_FLAGS: u32 = 64;

/// `ibv_create_qp`: stores the actual capacities in `init.cap`.
///
/// # Safety
/// `pd` is live, `init` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller's promise.
    entry::pointer("ibv_create_qp", || unsafe { build(pd, init, None) })
}

/// `create_qp_ex` of the extended context: with the extended posting functions, or the same as
/// `ibv_create_qp`.
///
/// # Safety
/// `init` is valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create_ex(context: *mut Context, init: *mut QpInitAttrEx) -> *mut Qp {
    entry::pointer("ibv_create_qp_ex", || {
        entry::not_null(init)?;
        let mask = get!(init, comp_mask);
        let flags = if mask & INIT_CREATE_FLAGS != 0 { get!(init, create_flags) } else { 0 };
        if mask & !(INIT_PD | INIT_XRCD | INIT_CREATE_FLAGS | INIT_SEND_OPS_FLAGS) != 0 || flags != 0 {
            return Err(refuse!(
                EOPNOTSUPP,
                "ibv_create_qp_ex: comp_mask {mask:#x}, create_flags {flags:#x}: not offered"
            ));
        }
        if get!(init, qp_type) == u32::from(kind::XRC_TGT) {
            if mask & (INIT_XRCD | INIT_SEND_OPS_FLAGS) != INIT_XRCD {
                return Err(refuse!(EINVAL, "ibv_create_qp_ex: an XRC_RECV QP needs a domain, and sends nothing"));
            }
            // SAFETY: the caller's promise.
            return unsafe { build_target(context, init) };
        }
        if mask & INIT_PD == 0 {
            return Err(refuse!(EINVAL, "ibv_create_qp_ex: comp_mask {mask:#x} lacks IBV_QP_INIT_ATTR_PD"));
        }
        let operations = (mask & INIT_SEND_OPS_FLAGS != 0).then(|| get!(init, send_ops_flags));
        let pd = get!(init, pd);
        // SAFETY: the caller's promise; the extended attributes begin with the plain ones.
        unsafe { build(pd, init.cast(), operations) }
    })
}

/// `struct ibv_qp *softhca_find_qp(uint32_t qp_num, uint32_t *state)`: the QP of this process with
/// this number, or NULL. Also stores its true state: an idle QP of iWARP tells programs INIT, even
/// in RESET. `librdmacm` finds with it the queue pair that `rdma_conn_param.qp_num` names.
///
/// # Safety
/// `state` can be written, and the program does not destroy this QP at the same time.
pub(crate) unsafe extern "C" fn find(qpn: u32, state: *mut u32) -> *mut Qp {
    entry::pointer("softhca_find_qp", || {
        entry::not_null(state)?;
        let found = QpObject::find(|qp| qp.inner.queue.get().is_some_and(|queue| queue.qpn() == qpn));
        let Some(found) = found else { return Ok(std::ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let known = unsafe { QpObject::of(found) }?.inner.queue()?.state();
        // SAFETY: not NULL, and the caller's to write.
        unsafe { state.write(known) };
        Ok(found.cast())
    })
}

/// All existing attributes.
const KNOWN: u32 = ((attr::DEST_QPN << 1) - 1) | attr::RATE_LIMIT;

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` is live, `attr` valid.
pub(crate) unsafe extern "C" fn modify(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int {
    entry::code("ibv_modify_qp", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::live(qp) }?;
        let mask = mask.cast_unsigned();
        if mask & !KNOWN != 0 {
            return Err(refuse!(
                EOPNOTSUPP,
                "ibv_modify_qp: attr_mask {mask:#x} has attributes that the device does not have"
            ));
        }
        let queue = object.inner.queue()?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let wanted = unsafe { attr.read() };
        let request = modification(&wanted, mask)?;
        let kbps = if mask & attr::RATE_LIMIT == 0 { 0 } else { wanted.rate_limit };
        queue.modify_paced(&request, RateLimit { kbps, burst: 0 })?;
        if mask & attr::STATE != 0 {
            set!(qp, state, u32::from(request.qp_state));
        }
        Ok(())
    })
}

/// `modify_qp_rate_limit` of the extended context (`ibv_modify_qp_rate_limit`). The typical packet
/// size has no effect, because each packet counts with its actual length.
///
/// # Safety
/// `qp` is live, `attr` valid.
pub(crate) unsafe extern "C" fn modify_rate_limit(qp: *mut Qp, attr: *mut QpRateLimitAttr) -> c_int {
    entry::code("ibv_modify_qp_rate_limit", || {
        entry::not_null(attr)?;
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::live(qp) }?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let QpRateLimitAttr { rate_limit: kbps, max_burst_sz: burst, typical_pkt_sz, comp_mask } =
            unsafe { attr.read() };
        if comp_mask != 0 || kbps == 0 && (burst != 0 || typical_pkt_sz != 0) {
            let text = "ibv_modify_qp_rate_limit: comp_mask";
            return Err(refuse!(EINVAL, "{text} {comp_mask:#x}, or bursts and packets of a rate that has no limit"));
        }
        let request = ModifyQp { attr_mask: attr::RATE_LIMIT, ..ModifyQp::default() };
        Ok(object.inner.queue()?.modify_paced(&request, RateLimit { kbps, burst })?)
    })
}

/// `ibv_query_qp`.
///
/// # Safety
/// `qp` is live, `attr` and `init` valid.
pub(crate) unsafe extern "C" fn query(qp: *mut Qp, attr: *mut QpAttr, mask: c_int, init: *mut QpInitAttr) -> c_int {
    entry::code("ibv_query_qp", || {
        entry::not_null(attr)?;
        entry::not_null(init)?;
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::live(qp) }?;
        let queue = object.inner.queue()?;
        let answer = queue.query(mask.cast_unsigned())?;
        let found = QpAttr { rate_limit: queue.rate_limit().kbps, ..attributes(&answer) };
        // SAFETY: not NULL, and the caller's to write.
        unsafe { attr.write(found) };
        let initial = QpInitAttr {
            qp_context: get!(qp, qp_context),
            send_cq: get!(qp, send_cq),
            recv_cq: get!(qp, recv_cq),
            srq: get!(qp, srq),
            cap: capacities(&answer),
            qp_type: get!(qp, qp_type),
            sq_sig_all: c_int::from(answer.sq_sig_all),
        };
        // SAFETY: as above.
        unsafe { init.write(initial) };
        if mask.cast_unsigned() & attr::STATE != 0 {
            set!(qp, state, u32::from(answer.qp_state));
        }
        Ok(())
    })
}

/// `ibv_destroy_qp`: waits until every event that was read is acknowledged.
///
/// # Safety
/// `qp` is live, and is not used afterwards when this succeeds.
pub(crate) unsafe extern "C" fn destroy(qp: *mut Qp) -> c_int {
    let work = |object: &QpObject| {
        let read = match object.inner.hold.get() {
            Some(hold) => hold.destroy()?,
            None => object.inner.queue()?.destroy()?,
        };
        // SAFETY: the context of a live QP is open.
        let lint = unsafe { OpenContext::of(get!(qp, context)) }?.engine.lint();
        object.inner.acks.wait_for(lint, "ibv_destroy_qp", 0, read);
        Ok(())
    };
    // SAFETY: the caller's promise; and no event refers to the QP any more.
    entry::code("ibv_destroy_qp", || unsafe { QpObject::end(qp, work) })
}

/// `ibv_qp_to_qp_ex`: NULL for a QP that was made without the extended posting functions.
///
/// # Safety
/// `qp` is live.
pub(crate) unsafe extern "C" fn to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    entry::value("ibv_qp_to_qp_ex", || {
        // SAFETY: the caller's promise.
        let object = unsafe { QpObject::live(qp) }.ok().filter(|object| object.inner.extended);
        object.map_or(std::ptr::null_mut(), QpObject::c)
    })
}

/// `ibv_query_qp_data_in_order`: softhca promises no order in which the bytes of one message appear
/// in memory.
pub(crate) extern "C" fn query_data_in_order(_qp: *mut Qp, _opcode: c_uint, _flags: u32) -> c_int {
    0
}

/// # Safety
/// `pd` is NULL or live, `init` NULL or valid, and the objects in it live.
unsafe fn build(pd: *mut Pd, init: *mut QpInitAttr, operations: Option<u64>) -> Outcome<*mut Qp> {
    entry::not_null(init)?;
    // SAFETY: not NULL, and valid by the caller's promise.
    let wanted = unsafe { init.read() };
    // SAFETY: the caller's promise.
    let domain = unsafe { PdObject::live(pd) }?;
    let context = get!(pd, context);
    // SAFETY: the context of a live PD is open.
    let engine = &unsafe { OpenContext::of(context) }?.engine;
    let service = service(wanted.qp_type)?;
    if service == Service::XrcTgt {
        return Err(refuse!(EINVAL, "ibv_create_qp: an XRC_RECV QP is made in an XRC domain, by ibv_create_qp_ex"));
    }
    let receives = service != Service::XrcIni;
    if !cq::belongs(wanted.send_cq, context)? || receives && !cq::belongs(wanted.recv_cq, context)? {
        return Err(refuse!(EINVAL, "ibv_create_qp: both CQs must be given, and be of the same open device as the PD"));
    }
    // SAFETY: not NULL, and live by the caller's promise.
    let send_cq = unsafe { cq::queue(wanted.send_cq) }?;
    let shared = match wanted.srq {
        srq if srq.is_null() || !receives => None,
        // SAFETY: not NULL, and live by the caller's promise.
        srq => Some(unsafe { SrqObject::live(srq) }?.inner.queue()?),
    };
    let QpInitAttr { qp_context, send_cq: scq, recv_cq: rcq, srq, qp_type, .. } = wanted;
    let c = Qp { context, qp_context, pd, send_cq: scq, recv_cq: rcq, srq, qp_type, ..Qp::zeroed() };
    qp_ex::check(service, operations.unwrap_or(0))?;
    let state = QpState::new(service, operations.is_some());
    let object = QpObject::create(QpEx { qp_base: c, ..QpEx::zeroed() }, state);
    let (caps, sq_sig_all, cookie) = (caps(&wanted.cap), wanted.sq_sig_all != 0, cookie(object));
    let made = if receives {
        // SAFETY: not NULL, and live by the caller's promise.
        unsafe { cq::queue(wanted.recv_cq) }.and_then(|recv_cq| {
            let spec = QpSpec { service, send_cq, recv_cq, srq: shared, caps, sq_sig_all, cookie };
            Ok(engine.create_qp(&domain.inner, &spec)?)
        })
    } else {
        let spec = InitiatorSpec { send_cq, caps, sq_sig_all, cookie };
        engine.create_initiator(&domain.inner, &spec).map_err(Refusal::from)
    };
    // SAFETY: just made, and nothing else refers to it.
    let whole = unsafe { QpObject::of(object) }?;
    match made {
        Ok(queue) => {
            set!(init, cap, granted(&queue.caps()));
            if let Some(operations) = operations {
                qp_ex::fill_functions(whole.c(), service, operations);
            }
            Ok(publish(whole, queue.handle(), queue))
        }
        Err(refusal) => {
            // SAFETY: nothing else refers to it.
            unsafe { QpObject::free(object) };
            Err(refusal)
        }
    }
}

/// Gives the QP's C struct the numbers of the queue.
fn publish(whole: &QpObject, handle: u32, queue: Arc<EngineQp>) -> *mut Qp {
    let c = whole.c().cast::<Qp>();
    set!(c, handle, handle);
    set!(c, qp_num, queue.qpn());
    whole.named();
    let _ = whole.inner.queue.set(queue);
    c
}

fn caps(wanted: &QpCap) -> Caps {
    Caps {
        max_send_wr: wanted.max_send_wr,
        max_recv_wr: wanted.max_recv_wr,
        max_send_sge: wanted.max_send_sge,
        max_recv_sge: wanted.max_recv_sge,
        max_inline_data: wanted.max_inline_data,
    }
}

fn granted(caps: &Caps) -> QpCap {
    QpCap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

/// # Safety
/// `init` is valid, and the domain in it live.
unsafe fn build_target(context: *mut Context, init: *mut QpInitAttrEx) -> Outcome<*mut Qp> {
    // SAFETY: the caller's promise.
    let engine = &unsafe { OpenContext::of(context) }?.engine;
    // SAFETY: the caller's promise.
    let xrcd = unsafe { xrc::domain(get!(init, xrcd).cast()) }?;
    let c = Qp { context, qp_context: get!(init, qp_context), qp_type: get!(init, qp_type), ..Qp::zeroed() };
    let made = held(c, |cookie| engine.create_target(xrcd, cookie))?;
    set!(init, cap, QpCap::zeroed());
    Ok(made)
}

/// Makes the object of a target QP that `hold` makes or opens.
pub(crate) fn held(c: Qp, hold: impl FnOnce(u64) -> engine::Result<Arc<Hold>>) -> Outcome<*mut Qp> {
    let state = QpState::new(Service::XrcTgt, false);
    let object = QpObject::create(QpEx { qp_base: c, ..QpEx::zeroed() }, state);
    match hold(cookie(object)) {
        Ok(hold) => {
            // SAFETY: just made, and nothing else refers to it.
            let whole = unsafe { QpObject::of(object) }?;
            let c = publish(whole, hold.handle(), Arc::clone(hold.qp()));
            let _ = whole.inner.hold.set(hold);
            Ok(c)
        }
        Err(error) => {
            // SAFETY: nothing else refers to it.
            unsafe { QpObject::free(object) };
            Err(error.into())
        }
    }
}

/// The service for a QP type. Types that verbs define but this device does not offer are
/// EOPNOTSUPP.
fn service(qp_type: u32) -> Outcome<Service> {
    match u8::try_from(qp_type) {
        Ok(kind::RC) => Ok(Service::Rc),
        Ok(kind::UC) => Ok(Service::Uc),
        Ok(kind::UD) => Ok(Service::Ud),
        Ok(kind::XRC_INI) => Ok(Service::XrcIni),
        Ok(kind::XRC_TGT) => Ok(Service::XrcTgt),
        Ok(kind::RAW_PACKET | kind::DRIVER) => {
            Err(refuse!(EOPNOTSUPP, "QP type {qp_type} is not offered: RC (2), UC (3), UD (4), XRC (9, 10) are"))
        }
        _ => Err(refuse!(EINVAL, "QP type {qp_type} does not exist")),
    }
}

/// Translates the program's changes to the command. An attribute that the mask selects is refused
/// if its value does not fit its field.
fn modification(attr: &QpAttr, mask: u32) -> Outcome<ModifyQp> {
    let narrow = |bit: u32, value: u32| {
        if mask & bit == 0 {
            Ok(0)
        } else {
            u8::try_from(value).map_err(|_| refuse!(EINVAL, "ibv_modify_qp: {value} for attribute bit {bit:#x}"))
        }
    };
    let place = |bit, vector| if mask & bit == 0 { Dest::default() } else { destination(vector) };
    Ok(named(ModifyQp {
        dest: place(attr::AV, &attr.ah_attr),
        alt_dest: place(attr::ALT_PATH, &attr.alt_ah_attr),
        qp_handle: 0,
        attr_mask: mask,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags,
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        qp_state: narrow(attr::STATE, attr.qp_state)?,
        cur_qp_state: narrow(attr::CUR_STATE, attr.cur_qp_state)?,
        path_mtu: narrow(attr::PATH_MTU, attr.path_mtu)?,
        path_mig_state: narrow(attr::PATH_MIG_STATE, attr.path_mig_state)?,
        en_sqd_async_notify: attr.en_sqd_async_notify,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        reserved: [0; 2],
    }))
}

/// Keeps only the fields that the mask selects. The other fields are uninitialized memory of the
/// program, which must not leave it.
fn named(request: ModifyQp) -> ModifyQp {
    let has = |bit| request.attr_mask & bit != 0;
    let byte = |bit, value: u8| if has(bit) { value } else { 0 };
    let word = |bit, value: u32| if has(bit) { value } else { 0 };
    ModifyQp {
        qkey: word(attr::QKEY, request.qkey),
        rq_psn: word(attr::RQ_PSN, request.rq_psn),
        sq_psn: word(attr::SQ_PSN, request.sq_psn),
        dest_qp_num: word(attr::DEST_QPN, request.dest_qp_num),
        qp_access_flags: word(attr::ACCESS_FLAGS, request.qp_access_flags),
        pkey_index: if has(attr::PKEY_INDEX) { request.pkey_index } else { 0 },
        alt_pkey_index: if has(attr::ALT_PATH) { request.alt_pkey_index } else { 0 },
        en_sqd_async_notify: byte(attr::EN_SQD_ASYNC_NOTIFY, request.en_sqd_async_notify),
        max_rd_atomic: byte(attr::MAX_QP_RD_ATOMIC, request.max_rd_atomic),
        max_dest_rd_atomic: byte(attr::MAX_DEST_RD_ATOMIC, request.max_dest_rd_atomic),
        min_rnr_timer: byte(attr::MIN_RNR_TIMER, request.min_rnr_timer),
        port_num: byte(attr::PORT, request.port_num),
        timeout: byte(attr::TIMEOUT, request.timeout),
        retry_cnt: byte(attr::RETRY_CNT, request.retry_cnt),
        rnr_retry: byte(attr::RNR_RETRY, request.rnr_retry),
        alt_port_num: byte(attr::ALT_PATH, request.alt_port_num),
        alt_timeout: byte(attr::ALT_PATH, request.alt_timeout),
        // The remaining fields were already filled according to their bits.
        ..request
    }
}

fn attributes(answer: &QueryQpAnswer) -> QpAttr {
    QpAttr {
        qp_state: u32::from(answer.qp_state),
        cur_qp_state: u32::from(answer.cur_qp_state),
        path_mtu: u32::from(answer.path_mtu),
        path_mig_state: u32::from(answer.path_mig_state),
        qkey: answer.qkey,
        rq_psn: answer.rq_psn,
        sq_psn: answer.sq_psn,
        dest_qp_num: answer.dest_qp_num,
        qp_access_flags: answer.qp_access_flags,
        cap: capacities(answer),
        ah_attr: ah_attr(&answer.dest),
        alt_ah_attr: ah_attr(&answer.alt_dest),
        pkey_index: answer.pkey_index,
        alt_pkey_index: answer.alt_pkey_index,
        en_sqd_async_notify: 0,
        sq_draining: answer.sq_draining,
        max_rd_atomic: answer.max_rd_atomic,
        max_dest_rd_atomic: answer.max_dest_rd_atomic,
        min_rnr_timer: answer.min_rnr_timer,
        port_num: answer.port_num,
        timeout: answer.timeout,
        retry_cnt: answer.retry_cnt,
        rnr_retry: answer.rnr_retry,
        alt_port_num: answer.alt_port_num,
        alt_timeout: answer.alt_timeout,
        rate_limit: 0,
    }
}

fn capacities(answer: &QueryQpAnswer) -> QpCap {
    QpCap {
        max_send_wr: answer.max_send_wr,
        max_recv_wr: answer.max_recv_wr,
        max_send_sge: answer.max_send_sge,
        max_recv_sge: answer.max_recv_sge,
        max_inline_data: answer.max_inline_data,
    }
}

fn destination(attr: &AhAttr) -> Dest {
    let grh = address::route(attr);
    Dest {
        dgid: grh.dgid.0,
        flow_label: grh.flow_label,
        dlid: attr.dlid,
        reserved: 0,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port_num: attr.port_num,
    }
}

fn ah_attr(dest: &Dest) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: Gid(dest.dgid),
            flow_label: dest.flow_label,
            sgid_index: dest.sgid_index,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        },
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global,
        port_num: dest.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_only_with_its_bit() {
        let attr = QpAttr { qp_state: 3, path_mtu: 1000, sq_psn: 7, ..QpAttr::zeroed() };
        let request = modification(&attr, attr::STATE | attr::SQ_PSN).unwrap();
        assert_eq!((request.qp_state, request.path_mtu, request.sq_psn), (3, 0, 7));
        assert_eq!(modification(&attr, attr::PATH_MTU), Err(Refusal(libc::EINVAL)));
    }

    #[test]
    fn an_address_goes_there_and_back() {
        let mut attr = AhAttr { sl: 3, is_global: 1, port_num: 1, ..AhAttr::zeroed() };
        attr.grh = GlobalRoute { dgid: Gid([9; 16]), flow_label: 5, sgid_index: 2, hop_limit: 64, traffic_class: 8 };
        let back = ah_attr(&destination(&attr));
        assert_eq!(back.grh.dgid, attr.grh.dgid);
        assert_eq!((back.grh.flow_label, back.grh.sgid_index, back.grh.hop_limit), (5, 2, 64));
        assert_eq!((back.sl, back.is_global, back.port_num), (3, 1, 1));
    }
}
