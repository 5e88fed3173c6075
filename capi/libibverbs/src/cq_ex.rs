//! Extended completion queues: one completion at a time under a cursor, whose fields the program
//! reads through functions.
//!
//! A cursor holds the completion between `start_poll` and `end_poll`. Meanwhile other threads wait,
//! unless the program said that only one thread polls. The principal type is [`Cursor`].

use crate::context::OpenContext;
use crate::cq::{self, CqObject};
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::layout::{Context, CqEx, CqInitAttrEx, Op, PollCqAttr};
use crate::object::{get, set};
use crate::pd::PdObject;
use bytemuck::Zeroable;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP` and `_WALLCLOCK`.
const TIMESTAMP: u64 = 1 << 7;
const WALLCLOCK: u64 = 1 << 11;
/// `IBV_WC_EX_*`: the fields that a completion offers: byte length to destination path bits, and
/// the time of the completion.
const OFFERED_FIELDS: u64 = 0x7f | TIMESTAMP | WALLCLOCK;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS` and `_PD`.
const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 2;
/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
const SINGLE_THREADED: u32 = 1;

/// The completion that a program is reading.
pub(crate) struct Cursor {
    /// Held from a successful `start_poll` to `end_poll`.
    lock: parking_lot::RawMutex,
    /// Whether the lock is used.
    shared: AtomicBool,
    /// Written by `start_poll` and `next_poll`, read by the thread that called them.
    current: UnsafeCell<(abi::cq::Wc, u64)>,
}

impl Default for Cursor {
    fn default() -> Self {
        Self {
            lock: parking_lot::RawMutex::INIT,
            shared: AtomicBool::new(true),
            current: UnsafeCell::new((abi::cq::Wc::zeroed(), 0)),
        }
    }
}

impl Cursor {
    fn enter(&self) {
        if self.shared.load(Ordering::Relaxed) {
            self.lock.lock();
        }
    }

    fn leave(&self) {
        if self.shared.load(Ordering::Relaxed) {
            // SAFETY: locked by `enter` in the `start_poll` that this call ends.
            unsafe { self.lock.unlock() };
        }
    }
}

/// `create_cq_ex` of the extended context.
///
/// # Safety
/// `context` is open, `attr` valid, and the objects in it live.
pub(crate) unsafe extern "C" fn create(context: *mut Context, attr: *mut CqInitAttrEx) -> *mut CqEx {
    entry::pointer("ibv_create_cq_ex", || {
        entry::not_null(attr)?;
        // SAFETY: not NULL, and valid by the caller's promise.
        let attr = unsafe { attr.read() };
        let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
        if attr.comp_mask & !(MASK_FLAGS | MASK_PD) != 0
            || attr.wc_flags & !OFFERED_FIELDS != 0
            || flags & !SINGLE_THREADED != 0
        {
            return Err(refuse!(
                EOPNOTSUPP,
                "ibv_create_cq_ex: wc_flags {:#x}, comp_mask {:#x}, flags {flags:#x}: of the fields only {OFFERED_FIELDS:#x} are offered",
                attr.wc_flags,
                attr.comp_mask
            ));
        }
        let domain = if attr.comp_mask & MASK_PD != 0 {
            // SAFETY: the caller's promise.
            let domain = &unsafe { PdObject::live(attr.parent_domain) }?.inner;
            if !domain.is_parent() || get!(attr.parent_domain, context) != context {
                return Err(refuse!(EINVAL, "ibv_create_cq_ex: that is no parent domain of this open device"));
            }
            Some(domain)
        } else {
            None
        };
        // SAFETY: the caller's promise.
        let cq = unsafe { cq::build(context, domain, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector) }?;
        // SAFETY: just made.
        let object = unsafe { CqObject::of(cq) }?;
        object.inner.cursor.shared.store(flags & SINGLE_THREADED == 0, Ordering::Relaxed);
        if attr.wc_flags & (TIMESTAMP | WALLCLOCK) != 0 {
            object.inner.queue()?.stamp();
        }
        fill_functions(cq, attr.wc_flags);
        Ok(cq)
    })
}

/// Sets the functions that the program asked for, and those that every CQ has.
fn fill_functions(cq: *mut CqEx, wc_flags: u64) {
    let asked = |bit: u32, function: Op| if wc_flags >> bit & 1 != 0 { function } else { std::ptr::null() };
    set!(cq, start_poll, start_poll as Op);
    set!(cq, next_poll, next_poll as Op);
    set!(cq, end_poll, end_poll as Op);
    set!(cq, read_opcode, read_opcode as Op);
    set!(cq, read_vendor_err, read_vendor_err as Op);
    set!(cq, read_wc_flags, read_wc_flags as Op);
    set!(cq, read_byte_len, asked(0, read_byte_len as Op));
    set!(cq, read_imm_data, asked(1, read_imm_data as Op));
    set!(cq, read_qp_num, asked(2, read_qp_num as Op));
    set!(cq, read_src_qp, asked(3, read_src_qp as Op));
    set!(cq, read_slid, asked(4, read_slid as Op));
    set!(cq, read_sl, asked(5, read_sl as Op));
    set!(cq, read_dlid_path_bits, asked(6, read_dlid_path_bits as Op));
    set!(cq, read_completion_ts, asked(7, read_completion_ts as Op));
    set!(cq, read_completion_wallclock_ns, asked(11, read_completion_wallclock_ns as Op));
}

/// Returns 0 with the first completion under the cursor, ENOENT if the CQ is empty, or another
/// errno value.
unsafe extern "C" fn start_poll(cq: *mut CqEx, attr: *mut PollCqAttr) -> c_int {
    entry::quick_value("ibv_start_poll", || {
        if !attr.is_null() && get!(attr, comp_mask) != 0 {
            return libc::EINVAL;
        }
        // SAFETY: the program calls it on a live CQ.
        let Ok(object) = (unsafe { CqObject::of(cq) }) else { return libc::EINVAL };
        object.inner.cursor.enter();
        match advance(object) {
            Ok(()) => 0,
            Err(refusal) => {
                object.inner.cursor.leave();
                refusal.0
            }
        }
    })
}

/// Returns 0 with the next completion under the cursor, or ENOENT if the CQ is empty. The cursor
/// stays locked.
unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    entry::quick_value("ibv_next_poll", || {
        // SAFETY: the program calls it between `start_poll` and `end_poll`.
        unsafe { CqObject::of(cq) }.and_then(advance).map_or_else(|refusal| refusal.0, |()| 0)
    })
}

unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    entry::quick_value("ibv_end_poll", || {
        // SAFETY: the program calls it after a successful `start_poll`.
        if let Ok(object) = unsafe { CqObject::of(cq) } {
            object.inner.cursor.leave();
        }
    });
}

/// Polls one completion. Programs read `wr_id` and `status` directly, as fields.
fn advance(object: &CqObject) -> Outcome<()> {
    let Some((wc, came)) = object.inner.queue()?.poll_one()? else { return Err(Refusal(libc::ENOENT)) };
    set!(object.c(), wr_id, wc.wr_id);
    set!(object.c(), status, wc.status);
    // SAFETY: this thread has entered the cursor, so no other thread reads or writes it.
    unsafe { object.inner.cursor.current.get().write((wc, came)) };
    Ok(())
}

/// The completion under the cursor.
fn current(cq: *mut CqEx) -> abi::cq::Wc {
    stamped(cq).0
}

/// The completion under the cursor, and its time.
fn stamped(cq: *mut CqEx) -> (abi::cq::Wc, u64) {
    // SAFETY: the program calls the reading functions between `start_poll` and `end_poll`, on a
    // live CQ.
    let object = unsafe { CqObject::of(cq) };
    // SAFETY: as above: the calling thread has entered the cursor.
    object.map_or_else(|_| (abi::cq::Wc::zeroed(), 0), |object| unsafe { object.inner.cursor.current.get().read() })
}

extern "C" fn read_opcode(cq: *mut CqEx) -> c_uint {
    current(cq).opcode
}

extern "C" fn read_vendor_err(cq: *mut CqEx) -> u32 {
    current(cq).vendor_err
}

/// The time in ticks of the device's clock, which are nanoseconds.
extern "C" fn read_completion_ts(cq: *mut CqEx) -> u64 {
    stamped(cq).1
}

/// The time in nanoseconds since 1970.
extern "C" fn read_completion_wallclock_ns(cq: *mut CqEx) -> u64 {
    // SAFETY: the program calls it on a live CQ, whose context is open.
    let open = unsafe { OpenContext::of_live(get!(cq, context)) };
    open.map_or(0, |open| open.engine.wall_clock(stamped(cq).1))
}

extern "C" fn read_byte_len(cq: *mut CqEx) -> u32 {
    current(cq).byte_len
}

extern "C" fn read_imm_data(cq: *mut CqEx) -> u32 {
    current(cq).imm_data
}

extern "C" fn read_qp_num(cq: *mut CqEx) -> u32 {
    current(cq).qp_num
}

extern "C" fn read_src_qp(cq: *mut CqEx) -> u32 {
    current(cq).src_qp
}

extern "C" fn read_wc_flags(cq: *mut CqEx) -> c_uint {
    current(cq).wc_flags
}

extern "C" fn read_slid(cq: *mut CqEx) -> u32 {
    u32::from(current(cq).slid)
}

extern "C" fn read_sl(cq: *mut CqEx) -> u8 {
    current(cq).sl
}

extern "C" fn read_dlid_path_bits(cq: *mut CqEx) -> u8 {
    current(cq).dlid_path_bits
}
