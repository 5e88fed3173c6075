//! Scopes: requests on borrowed memory, in the manner of `std::thread::scope`. Principal type:
//! [`Scope`].
//!
//! A scope registers each slice separately. It ends when all its requests have completed; when its
//! closure panics, they are flushed. Before the scope returns, it deregisters all memory, which
//! waits for the last copy. So nobody touches the memory afterwards, however the requests ended.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use abi::mr::access as right;
use abi::post::Sge;
use parking_lot::Mutex;

use crate::connected::{Connected, Qp, Reliable};
use crate::error::Result;
use crate::message::Parts;
use crate::operation::Operation;
use crate::pending::{Owner, Pending};
use crate::queue_pair::{Flags, QpInner, SendRequest};
use crate::remote::RemoteRegion;
use crate::tally::Tally;

/// The longest time between two polls of the CQs while a scope waits.
const LOOK: Duration = Duration::from_micros(500);

/// Posts requests on borrowed memory; see [`Qp::scope`].
pub struct Scope<'env, S> {
    qp: &'env QpInner,
    tally: Arc<Tally>,
    regions: Mutex<Vec<Arc<engine::Mr>>>,
    /// Makes `'env` invariant, so that memory with a shorter lifetime is not accepted.
    env: PhantomData<&'env mut &'env ()>,
    service: PhantomData<fn() -> S>,
}

impl<S: Connected> Qp<S> {
    /// Sends from, and receives into, borrowed memory: the arrays and vectors of the program. The
    /// scope ends when all its requests have completed. Then the program can use the memory again.
    /// A receive that gets no message waits for ever.
    ///
    /// Each request registers its memory with a command to the agent: [`Buffer`](crate::Buffer)s
    /// are faster.
    ///
    /// ```no_run
    /// # fn example(qp: softhca::Qp<softhca::Reliable>) -> softhca::Result<()> {
    /// let question = *b"how many?";
    /// let mut answer = [0; 8];
    /// qp.scope(|s| {
    ///     s.receive(1, &mut answer)?;
    ///     s.send(2, &question)
    /// })?;
    /// println!("{answer:?}");
    /// # Ok(()) }
    /// ```
    ///
    /// Memory that does not outlive the scope does not compile. Access to memory that is still
    /// being received into does not compile either:
    ///
    /// ```compile_fail,E0597
    /// # fn example(qp: softhca::Qp<softhca::Reliable>) -> softhca::Result<()> {
    /// qp.scope(|s| {
    ///     let question = *b"how many?";
    ///     s.send(2, &question) // `question` is dropped before the scope ends.
    /// })
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0502
    /// # fn example(qp: softhca::Qp<softhca::Reliable>) -> softhca::Result<()> {
    /// let mut answer = [0; 8];
    /// qp.scope(|s| {
    ///     s.receive(1, &mut answer)?;
    ///     println!("{answer:?}");
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The closure's error, else the error of the first request that failed.
    pub fn scope<'env, T>(&'env self, body: impl FnOnce(&Scope<'env, S>) -> Result<T>) -> Result<T> {
        let scope = Scope {
            qp: &self.inner,
            tally: Arc::default(),
            regions: Mutex::default(),
            env: PhantomData,
            service: PhantomData,
        };
        // Ends the scope, also when the closure panics.
        let mut end = End { scope: &scope, flush: true };
        let value = body(&scope);
        end.flush = false;
        drop(end);
        let failed = scope.tally.state.lock().failed.take();
        match (value, failed) {
            (Ok(_), Some(failed)) => Err(failed),
            (value, _) => value,
        }
    }
}

impl<'env, S> Scope<'env, S> {
    /// Registers borrowed memory and returns its element; `None` for an empty slice, which need not
    /// point to memory.
    fn register(&self, addr: usize, len: usize, rights: u32) -> Result<Option<Sge>> {
        if len == 0 {
            return Ok(None);
        }
        let mr = self.qp.pd.pd.reg_mr(addr as u64, len as u64, addr as u64, rights)?;
        let sge = Sge::new(addr as u64, u32::try_from(len).unwrap_or(u32::MAX), mr.lkey());
        self.regions.lock().push(mr);
        Ok(Some(sge))
    }

    fn readable(&self, bytes: &'env [u8]) -> Result<Option<Sge>> {
        self.register(bytes.as_ptr().expose_provenance(), bytes.len(), 0)
    }

    fn writable(&self, bytes: &'env mut [u8]) -> Result<Option<Sge>> {
        self.register(bytes.as_mut_ptr().expose_provenance(), bytes.len(), right::LOCAL_WRITE)
    }

    fn posted(&self, id: u64, operation: Operation, post: impl FnOnce(Pending) -> Result<()>) -> Result<()> {
        self.tally.state.lock().under_way += 1;
        let posted = post(Pending::new(id, operation, Parts::None, Owner::Scope(Arc::clone(&self.tally))));
        if posted.is_err() {
            self.tally.state.lock().under_way -= 1;
        }
        posted
    }

    fn send_on(&self, id: u64, request: SendRequest<'_>, sge: Option<Sge>) -> Result<()> {
        request.check(sge.map_or(0, |sge| u64::from(sge.length)))?;
        self.posted(id, request.operation, |pending| {
            Ok(self.qp.post(request, Flags::default(), sge.as_slice(), pending)?)
        })
    }

    /// Receives a message into borrowed memory.
    ///
    /// # Errors
    /// EFAULT for memory that cannot be written; else the errors of [`Qp::receive`].
    pub fn receive(&self, id: u64, into: &'env mut [u8]) -> Result<()> {
        let sge = self.writable(into)?;
        self.posted(id, Operation::Receive, |pending| Ok(self.qp.post_receive(sge.as_slice(), pending)?))
    }

    /// Sends borrowed memory.
    ///
    /// # Errors
    /// The errors of [`Qp::send`].
    pub fn send(&self, id: u64, bytes: &'env [u8]) -> Result<()> {
        self.send_on(id, SendRequest::new(Operation::Send, None), self.readable(bytes)?)
    }

    /// Writes borrowed memory to the peer's memory.
    ///
    /// # Errors
    /// The errors of [`Qp::write`].
    pub fn write(&self, id: u64, bytes: &'env [u8], to: &RemoteRegion) -> Result<()> {
        self.send_on(id, SendRequest::new(Operation::Write, Some(*to)), self.readable(bytes)?)
    }

    /// Waits until all requests posted so far have completed. The memory stays borrowed until the
    /// scope ends.
    ///
    /// # Errors
    /// The error of the first request that failed.
    pub fn settle(&self) -> Result<()> {
        self.wait();
        match &self.tally.state.lock().failed {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Number of bytes that the completed request with this id received or sent; `None` before it
    /// completes.
    #[must_use]
    pub fn bytes(&self, id: u64) -> Option<usize> {
        self.tally.state.lock().received.iter().find(|(known, _)| *known == id).map(|(_, bytes)| *bytes)
    }

    fn wait(&self) {
        let mut pause = Duration::from_micros(1);
        loop {
            // Completions of other requests are kept for their programs' polls.
            let gathered = self.qp.send_cq.gather().and_then(|()| self.qp.receive_cq.gather());
            let mut count = self.tally.state.lock();
            // An error means that this is a child process, where nobody touches the memory.
            if count.under_way == 0 || gathered.is_err() {
                return;
            }
            self.tally.changed.wait_for(&mut count, pause);
            pause = (pause * 2).min(LOOK);
        }
    }
}

impl<'env> Scope<'env, Reliable> {
    /// Reads the peer's memory into borrowed memory.
    ///
    /// # Errors
    /// The errors of [`Qp::read`].
    pub fn read(&self, id: u64, into: &'env mut [u8], from: &RemoteRegion) -> Result<()> {
        self.send_on(id, SendRequest::new(Operation::Read, Some(*from)), self.writable(into)?)
    }
}

impl<S> fmt::Debug for Scope<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} requests under way)", self.tally.state.lock().under_way)
    }
}

/// Ends a scope when it is dropped.
struct End<'a, 'env, S> {
    scope: &'a Scope<'env, S>,
    flush: bool,
}

impl<S> Drop for End<'_, '_, S> {
    fn drop(&mut self) {
        if self.flush {
            let _ = self.scope.qp.flush();
        }
        self.scope.wait();
        for mr in self.scope.regions.lock().drain(..) {
            // The memory must not be given back while somebody may touch it. There is no other way
            // to be sure.
            if mr.dereg().is_err() && self.scope.qp.pd.ctx.engine.check_process().is_ok() {
                engine::reason::say(format_args!("a registration of borrowed memory could not be ended"));
                std::process::abort();
            }
        }
    }
}
