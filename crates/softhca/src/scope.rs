//! Scopes: requests on memory that is only borrowed, as `std::thread::scope` has threads on it. Principal type: [`Scope`].
//!
//! A scope registers each slice for itself. It ends when every request in it has; when its closure panics, they are flushed. Before it
//! returns, all its registrations have ended, which waits for the last copy: whatever becomes of the requests, nobody
//! touches the memory afterwards.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use abi::cq::Wc;
use abi::mr::access as right;
use abi::post::Sge;
use engine::Engine;
use parking_lot::{Condvar, Mutex};
use protocol::Status;

use crate::completion::{Operation, failure, status};
use crate::connected::{Connected, Qp, Reliable};
use crate::error::{Error, Result};
use crate::message::Parts;
use crate::pending::{Owner, Pending};
use crate::queue_pair::{Flags, QpInner, Request};
use crate::remote::RemoteRegion;

/// The longest time between two looks at the CQs while a scope waits.
const LOOK: Duration = Duration::from_micros(500);

/// Counts the requests of a scope.
#[derive(Default)]
pub(crate) struct Tally {
    state: Mutex<Count>,
    changed: Condvar,
}

#[derive(Default)]
struct Count {
    under_way: usize,
    received: Vec<(u64, usize)>,
    failed: Option<Error>,
}

impl Tally {
    /// One request is over.
    pub(crate) fn done(&self, wc: &Wc, id: u64, engine: &Engine) {
        let mut count = self.state.lock();
        count.under_way -= 1;
        match status(wc.status) {
            Status::Success => count.received.push((id, wc.byte_len as usize)),
            // The first is the cause, the others follow from it.
            _ if count.failed.is_none() => count.failed = Some(failure(wc, id, engine)),
            _ => {}
        }
        self.changed.notify_all();
    }
}

/// Posts requests on borrowed memory; see [`Qp::scope`].
pub struct Scope<'env, S> {
    qp: &'env QpInner,
    tally: Arc<Tally>,
    regions: Mutex<Vec<Arc<engine::Mr>>>,
    /// Invariant: memory that lives shorter than the whole call must not do.
    env: PhantomData<&'env mut &'env ()>,
    service: PhantomData<fn() -> S>,
}

impl<S: Connected> Qp<S> {
    /// Sends from, and receives into, memory that is borrowed: the arrays and vectors of the program. The scope ends when all that was
    /// posted in it is over, and then the memory is the program's again. A receive that nothing comes for waits for ever.
    ///
    /// Each request registers its memory, which takes a question to the agent: [`Buffer`](crate::Buffer)s are faster.
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
    /// Memory that does not outlive the scope does not compile, and neither does looking at what is still being received:
    ///
    /// ```compile_fail,E0597
    /// # fn example(qp: softhca::Qp<softhca::Reliable>) -> softhca::Result<()> {
    /// qp.scope(|s| {
    ///     let question = *b"how many?";
    ///     s.send(2, &question) // It is gone before the scope ends.
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
    /// The closure's, else that of the first request that failed.
    pub fn scope<'env, T>(&'env self, body: impl FnOnce(&Scope<'env, S>) -> Result<T>) -> Result<T> {
        let scope = Scope {
            qp: &self.inner,
            tally: Arc::default(),
            regions: Mutex::default(),
            env: PhantomData,
            service: PhantomData,
        };
        // Ends the scope however the closure does.
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
    /// The element of borrowed memory; of no bytes none, for such a slice need not be memory at all.
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

    fn send_on(&self, id: u64, request: Request<'_>, sge: Option<Sge>) -> Result<()> {
        request.check(sge.map_or(0, |sge| u64::from(sge.length)))?;
        self.posted(id, request.operation, |pending| {
            Ok(self.qp.post(request, Flags::default(), sge.as_slice(), pending)?)
        })
    }

    /// Receives a message into borrowed memory.
    ///
    /// # Errors
    /// EFAULT for memory that cannot be written; else as [`Qp::receive`].
    pub fn receive(&self, id: u64, into: &'env mut [u8]) -> Result<()> {
        let sge = self.writable(into)?;
        self.posted(id, Operation::Receive, |pending| Ok(self.qp.post_receive(sge.as_slice(), pending)?))
    }

    /// Sends borrowed memory.
    ///
    /// # Errors
    /// As [`Qp::send`].
    pub fn send(&self, id: u64, bytes: &'env [u8]) -> Result<()> {
        self.send_on(id, Request::new(Operation::Send, None), self.readable(bytes)?)
    }

    /// Writes borrowed memory to the peer's.
    ///
    /// # Errors
    /// As [`Qp::write`].
    pub fn write(&self, id: u64, bytes: &'env [u8], to: &RemoteRegion) -> Result<()> {
        self.send_on(id, Request::new(Operation::Write, Some(*to)), self.readable(bytes)?)
    }

    /// Waits until everything that was posted so far is over. The memory stays borrowed until the scope ends.
    ///
    /// # Errors
    /// That of the first request that failed.
    pub fn settle(&self) -> Result<()> {
        self.wait();
        match &self.tally.state.lock().failed {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// How many bytes came for the receive (or moved for the send) with this name, when it is over.
    #[must_use]
    pub fn bytes(&self, id: u64) -> Option<usize> {
        self.tally.state.lock().received.iter().find(|(known, _)| *known == id).map(|(_, bytes)| *bytes)
    }

    fn wait(&self) {
        let mut pause = Duration::from_micros(1);
        loop {
            // Completions of others are kept for them.
            let gathered = self.qp.send_cq.gather().and_then(|()| self.qp.receive_cq.gather());
            let mut count = self.tally.state.lock();
            // An error: we are in a child process, where nobody touches the memory.
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
    /// As [`Qp::read`].
    pub fn read(&self, id: u64, into: &'env mut [u8], from: &RemoteRegion) -> Result<()> {
        self.send_on(id, Request::new(Operation::Read, Some(*from)), self.writable(into)?)
    }
}

impl<S> fmt::Debug for Scope<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} requests under way)", self.tally.state.lock().under_way)
    }
}

/// The end of a scope.
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
            // The memory must not be given back while somebody may touch it, and there is no other way to be sure.
            if mr.dereg().is_err() && self.scope.qp.pd.ctx.engine.check_process().is_ok() {
                engine::reason::say(format_args!("a registration of borrowed memory could not be ended"));
                std::process::abort();
            }
        }
    }
}
