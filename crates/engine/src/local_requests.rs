//! Requests of a send queue that send nothing: BIND_MW and LOCAL_INV. Adds to [`SendBatch`] and
//! [`Qp`].

use protocol::{Operation, SendOp, Status};

use crate::memory::SendBrief;
use crate::post_error::PostCause;
use crate::qp::{Inner, Qp, Receive};
use crate::send::{SendBatch, SendWr};
use crate::window::{Bind, Binder};

/// What a program can do about a window that was not bound or not invalidated.
const BIND_ADVICE: &str = "check the window, its region and the region's MW_BIND right";

impl Bind {
    /// Stores the parameters in a request, in fields that other operations use.
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

impl SendBatch<'_> {
    /// Adds a request that sends nothing. The queue has room for it.
    #[cold]
    pub(crate) fn add_local(&mut self, wr: &SendWr<'_>, operation: Operation) -> Result<(), PostCause> {
        let brief = SendBrief {
            wr_id: wr.wr_id,
            opcode: wr.opcode as u8,
            signaled: u8::from(self.qp.signals(wr.send_flags)),
            ..bytemuck::Zeroable::zeroed()
        };
        let index = self.inner.queues.sq_tail;
        let fence = wr.send_flags & abi::post::send_flags::FENCE != 0;
        let mut op = SendOp { slot: index, operation, fence, imm: wr.imm, ..SendOp::default() };
        if operation == Operation::BindMw {
            let bind = wr.bind.ok_or(PostCause::NoWindow)?;
            bind.put_into(&mut op);
        }
        self.inner.queues.sq.write(index, &brief);
        self.add_operation(op)
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
            let done = self.execute_local(inner, &op);
            inner.requester.local_done(done);
        }
        any
    }

    /// Executes a local request.
    pub(crate) fn execute_local(&self, inner: &Inner, op: &SendOp) -> Result<(), Status> {
        let done = if op.operation == Operation::BindMw {
            self.bind(&Bind::of(op))
        } else {
            self.invalidate(op.imm).map_err(|why| format!("key {:#x} cannot be invalidated: {why}", op.imm))
        };
        done.map_err(|why| {
            // The IBA has one status for all errors with keys: memory management operation error.
            self.explain(inner, op.slot, Status::MwBindErr, &why, Some(BIND_ADVICE));
            Status::MwBindErr
        })
    }

    fn bind(&self, bind: &Bind) -> Result<(), String> {
        let keys = &self.engine().keys;
        let window = keys.windows.find(bind.window >> 8).filter(|window| window.number == bind.window);
        window.ok_or("the window was deallocated")?.bind(&keys.extents, self.binder(), bind)
    }

    /// Invalidates the key that a SEND names. Returns false, and explains the status of the receive
    /// request, if that is not possible.
    #[cold]
    pub(crate) fn invalidates(&self, receive: &Receive, key: u32) -> bool {
        let invalidated = self.invalidate(key);
        if let Err(why) = &invalidated {
            let why = format_args!("the peer asked to invalidate {key:#x}, and {why}");
            let advice = "the peer has to name a window of type 2 that this QP has open";
            self.failed(receive.wr_id, Status::RemInvReqErr, &why, Some(advice));
        }
        invalidated.is_ok()
    }

    /// Invalidates a key, for a request of this side or of the peer.
    pub(crate) fn invalidate(&self, key: u32) -> Result<(), String> {
        let keys = &self.engine().keys;
        let window = keys.windows.find(key >> 8);
        window.ok_or("it is no memory window's key")?.invalidate(&keys.extents, self.binder(), key)
    }

    fn binder(&self) -> Binder {
        Binder { qpn: self.qpn(), pd: self.pd }
    }
}
