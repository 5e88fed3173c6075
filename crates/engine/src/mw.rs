//! Memory windows: keys for part of a region, which a work request opens and closes.
//!
//! A bound window is one more extent of this process under its own key, and its users are checked
//! like a region's users. This file decides when a window may be bound, and how this side or a peer
//! invalidates it. IBA 10.6.7.2, 10.6.7.3, V-30 to V-33. Principal type: [`Mw`].

use std::sync::Arc;

use abi::command::number as command;
use abi::layout::Record;
use abi::mr::{AllocMw, AllocMwAnswer, DeallocMw, access as right, mw_type};
use abi::queue::{MwIn, REV, qp as word};
use parking_lot::Mutex;
use protocol::{Operation, SendOp, Status};

use crate::engine::Engine;
use crate::error::Result;
use crate::extent::{EVERY_PD, Extent, LOCAL_READ, Windows};
use crate::pd::Pd;
use crate::post_error::{PostCause, PostError};
use crate::qp::{Inner, Qp};
use crate::request;
use crate::send::{SendBatch, SendWr};
use crate::wqe::SendBrief;

/// The rights that a window can give to a peer.
const REMOTE: u32 = right::REMOTE_WRITE | right::REMOTE_READ | right::REMOTE_ATOMIC | right::FLUSH_GLOBAL;

/// What a program can do about a window that was not bound or not invalidated.
const BIND_ADVICE: &str = "check the window, its region and the region's MW_BIND right";

/// The parameters of BIND_MW that other requests do not have.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The window: [`Mw::number`].
    pub window: u32,
    /// The new key. Only the lower 8 bits count; the others are the window's own.
    pub rkey: u32,
    /// The region's key; ignored with a length of 0.
    pub mr: u32,
    /// The first byte, as an address of the region.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// Remote rights, and whether the window's addresses begin at 0.
    pub access: u32,
}

impl Bind {
    /// Stores it in a request, in fields that other operations use.
    fn put_into(&self, op: &mut SendOp) {
        (op.imm, op.rkey, op.remote_addr) = (self.window, self.rkey, self.addr);
        (op.swap_add, op.compare, op.dest.qkey) = (self.mr.into(), self.length, self.access);
    }

    /// Reads the fields that [`Bind::put_into`] has stored.
    fn of(op: &SendOp) -> Self {
        Self {
            window: op.imm,
            rkey: op.rkey,
            mr: op.swap_add as u32,
            addr: op.remote_addr,
            length: op.compare,
            access: op.dest.qkey,
        }
    }
}

/// A memory window.
pub struct Mw {
    engine: Arc<Engine>,
    handle: u32,
    pd: u32,
    kind: u8,
    /// Type 2A: bound to a QP number and to no PD.
    to_number: bool,
    /// The first key.
    number: u32,
    state: Mutex<Binding>,
}

/// What a window is bound to.
struct Binding {
    /// The last key.
    key: u32,
    /// The region's count of windows, and the number of the QP that has bound this window.
    to: Option<(Arc<Windows>, u32)>,
}

impl Mw {
    pub(crate) fn alloc(pd: &Arc<Pd>, kind: u8) -> Result<Arc<Self>> {
        let engine = Arc::clone(pd.engine());
        let body = AllocMw { response: 1, pd_handle: pd.handle(), mw_type: kind, reserved: [0; 3] };
        let answer: AllocMwAnswer =
            engine.call(&request::legacy(command::ALLOC_MW, &body, size_of::<AllocMwAnswer>()))?.get(0)?;
        let key = answer.rkey;
        let state = Mutex::new(Binding { key, to: None });
        let to_number = kind == mw_type::TYPE_2 && engine.binds_to_number();
        let (handle, pd) = (answer.mw_handle, pd.handle());
        let mw = Arc::new(Self { engine, handle, pd, kind, to_number, number: key, state });
        mw.engine.windows.insert(key >> 8, Arc::clone(&mw));
        Ok(mw)
    }

    /// The agent's handle of the window.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The number by which work requests name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The type: 1 or 2.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// The current key, bound or not.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.state.lock().key
    }

    /// Frees the window, bound or not. After the return nobody accesses memory through it.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn dealloc(&self) -> Result<()> {
        self.engine.check_process()?;
        let mut state = self.state.lock();
        let tail = MwIn { rev: REV, key: state.key };
        let body = DeallocMw { mw_handle: self.handle };
        match self.engine.call(&abi::command::legacy(command::DEALLOC_MW, &body, tail.bytes(), 0)) {
            Err(error) if !self.engine.has_lost(&error) => Err(error),
            _ => {
                self.engine.windows.remove(self.number >> 8);
                self.unbind(&mut state);
                Ok(())
            }
        }
    }

    /// Unbinds the window. Waits for copies under way.
    fn unbind(&self, state: &mut Binding) {
        if let Some((windows, _)) = state.to.take() {
            self.engine.extents.remove(self.number >> 8);
            windows.remove();
        }
    }

    /// Binds the window for `qp`, or says why it cannot.
    fn bind(&self, qp: &Qp, bind: &Bind) -> Result<(), String> {
        let Bind { rkey, mr, addr, length, access, .. } = *bind;
        let mut state = self.state.lock();
        if self.pd != qp.pd {
            return Err(format!("the window is on PD {}, the QP on PD {}", self.pd, qp.pd));
        }
        // The old key does not matter: adapters accept any lower 8 bits, including the current
        // ones.
        let key = self.number & !0xff | rkey & 0xff;
        if self.kind == mw_type::TYPE_2 && (length == 0 || state.to.is_some()) {
            return Err("a window of type 2 is bound to some bytes, and invalidated before it is bound anew".into());
        }
        if length == 0 {
            self.unbind(&mut state);
            state.key = key;
            return Ok(());
        }
        let extent = self.region(mr)?;
        let host = check(&extent, self.pd, bind)?;
        if !extent.windows.add() {
            return Err(format!("MR {mr:#x} is being deregistered"));
        }
        self.unbind(&mut state);
        state.key = key;
        state.to = Some((Arc::clone(&extent.windows), qp.qpn()));
        let window = Extent {
            key,
            host,
            iova: if access & right::ZERO_BASED != 0 { 0 } else { addr },
            length,
            access: access & REMOTE,
            only: if self.kind == mw_type::TYPE_2 { qp.qpn() } else { 0 },
            pd: if self.to_number { EVERY_PD } else { self.pd },
            ..(*extent).clone()
        };
        self.engine.extents.insert(key >> 8, Arc::new(window));
        Ok(())
    }

    fn region(&self, key: u32) -> Result<Arc<Extent>, String> {
        let extent = self.engine.extents.find(key >> 8).filter(|extent| extent.key == key);
        let extent = extent.filter(|extent| extent.access & LOCAL_READ != 0);
        extent.ok_or_else(|| format!("key {key:#x} names no memory region of this process"))
    }

    /// Invalidates the window, for a request of `qp` or of its peer.
    fn invalidate(&self, qp: &Qp, key: u32) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.key != key {
            return Err(format!("the window's key is {:#x} now", state.key));
        }
        if self.kind != mw_type::TYPE_2 {
            return Err("windows of type 1 are closed by binding them to nothing".into());
        }
        if self.pd != qp.pd && !self.to_number {
            return Err(format!("the window is on PD {}", self.pd));
        }
        match &state.to {
            None => Err("the window is not bound".into()),
            Some((_, owner)) if *owner != qp.qpn() => Err(format!("QP {owner:#x} has bound the window")),
            Some(_) => {
                self.unbind(&mut state);
                Ok(())
            }
        }
    }
}

/// Checks whether a window on `pd` may be bound to the region. Returns the address of its first
/// byte in this process.
fn check(extent: &Extent, pd: u32, bind: &Bind) -> Result<u64, String> {
    let Bind { mr, addr, length, access, .. } = *bind;
    if extent.pd != pd {
        return Err(format!("MR {mr:#x} is on PD {}, the window on PD {pd}", extent.pd));
    }
    if extent.access & right::MW_BIND == 0 {
        return Err(format!("MR {mr:#x} was registered without IBV_ACCESS_MW_BIND"));
    }
    if extent.access & right::ZERO_BASED != 0 {
        return Err(format!("MR {mr:#x} is zero-based, and no window can be bound to it"));
    }
    if access & (right::REMOTE_WRITE | right::REMOTE_ATOMIC) != 0 && extent.access & right::LOCAL_WRITE == 0 {
        return Err(format!("MR {mr:#x} was registered without IBV_ACCESS_LOCAL_WRITE, and the peer is to write"));
    }
    let inside =
        addr.checked_sub(extent.iova).filter(|&offset| offset <= extent.length && length <= extent.length - offset);
    let outside = || {
        let (start, bytes) = (extent.iova, extent.length);
        format!("the range of {length} bytes at {addr:#x} is outside MR {mr:#x} ({bytes} bytes at {start:#x})")
    };
    inside.map(|offset| extent.host.wrapping_add(offset)).ok_or_else(outside)
}

impl SendBatch<'_> {
    /// Adds a request that sends nothing. The queue has room for it.
    #[cold]
    pub(crate) fn push_local(&mut self, wr: &SendWr<'_>, operation: Operation) -> Result<(), PostError> {
        let (qp, inner) = (self.qp, &mut *self.inner);
        let brief = SendBrief {
            wr_id: wr.wr_id,
            opcode: wr.opcode as u8,
            signaled: u8::from(qp.signals(wr.send_flags)),
            ..bytemuck::Zeroable::zeroed()
        };
        let index = inner.sq_tail;
        let fence = wr.send_flags & abi::post::send_flags::FENCE != 0;
        let mut op = SendOp { slot: index, operation, fence, imm: wr.imm, ..SendOp::default() };
        if operation == Operation::BindMw {
            let Some(bind) = wr.bind else {
                return Err(qp.refused_send(wr.wr_id, PostCause::NoWindow));
            };
            bind.put_into(&mut op);
        }
        if inner.requester.post(op).is_err() {
            return Err(qp.refused_send(wr.wr_id, PostCause::QueueFull { depth: qp.caps.max_send_wr }));
        }
        inner.sq.write(index, &brief);
        inner.sq_tail = inner.sq.advance(index);
        inner.store(word::SQ_TAIL, inner.sq_tail);
        Ok(())
    }
}

impl Qp {
    /// Executes local requests while they are next in the queue. Returns whether there was one.
    #[cold]
    pub(crate) fn carry_out(&self, inner: &mut Inner) -> bool {
        let mut any = false;
        while inner.requester.has_local() {
            let now = self.time(inner);
            let Some(op) = inner.requester.poll_local(now) else { break };
            any = true;
            let done = if op.operation == Operation::BindMw {
                self.bind(&Bind::of(&op))
            } else {
                self.invalidate(op.imm).map_err(|why| format!("key {:#x} cannot be invalidated: {why}", op.imm))
            };
            let done = done.map_err(|why| {
                // The IBA has one status for all errors with keys: memory management operation
                // error.
                self.explain(inner, op.slot, Status::MwBindErr, &why, Some(BIND_ADVICE));
                Status::MwBindErr
            });
            inner.requester.local_done(done);
        }
        any
    }

    fn bind(&self, bind: &Bind) -> Result<(), String> {
        let window = self.engine().windows.find(bind.window >> 8).filter(|mw| mw.number == bind.window);
        window.ok_or("the window was deallocated")?.bind(self, bind)
    }

    /// Invalidates a key, for a request of this side or of the peer.
    pub(crate) fn invalidate(&self, key: u32) -> Result<(), String> {
        let window = self.engine().windows.find(key >> 8);
        window.ok_or("it is no memory window's key")?.invalidate(self, key)
    }

    /// Whether a request with these flags gives a completion.
    fn signals(&self, flags: u32) -> bool {
        self.sq_sig_all || flags & abi::post::send_flags::SIGNALED != 0
    }
}
