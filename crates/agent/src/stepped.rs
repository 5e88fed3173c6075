//! An agent without a thread, for simulations: each command is carried out by its caller, at once.
//!
//! Nothing here waits, reads a clock or depends on chance, so the same commands in the same order have the same answers. What the server's
//! thread does beside commands is not here: there are no clients of other processes, no run directory, no engines for clients without one,
//! and no connection manager. The principal type is [`Stepped`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use abi::Errno;
use engine::{Answer, Control, Network, Simulated};
use parking_lot::Mutex;

use crate::agent::StartError;
use crate::config::Config;
use crate::context::{ContextId, Peer};
use crate::dispatch::dispatch;
use crate::refusal::Refusal;
use crate::wire::Forwarder;
use crate::world::World;

/// An agent that runs when it is called.
pub struct Stepped {
    world: Mutex<World>,
    forwarder: Arc<Forwarder>,
}

impl Stepped {
    /// An agent that nobody has called yet; its devices have their GUIDs from `place`.
    ///
    /// # Errors
    /// The configuration makes no sense, or the system has no memory or descriptors left.
    pub fn new(config: &Config, place: &str) -> Result<Self, StartError> {
        config.check()?;
        let mut world = World::new(config, place)?;
        shm::register_barrier();
        world.follow_addresses(&[]);
        world.follow_wire(Instant::now);
        let forwarder = Arc::clone(world.wire.forwarder());
        Ok(Self { world: Mutex::new(world), forwarder })
    }

    /// What hands datagrams of other hosts to this agent's engines.
    pub fn forwarder(&self) -> &Arc<Forwarder> {
        &self.forwarder
    }

    /// Takes a port of a device down, or makes it active again.
    pub fn set_port(&self, device: usize, port: u32, up: bool) {
        let mut world = self.world.lock();
        world.set_port(device, port, up);
        settle(&mut world);
    }

    /// Opens a device for an engine whose packets go through `network`, and whose time is `simulated`.
    ///
    /// # Errors
    /// ENODEV when there is no such device.
    pub fn connect(
        self: &Arc<Self>,
        device: usize,
        network: Arc<dyn Network>,
        simulated: Arc<dyn Simulated>,
    ) -> Result<SteppedControl, Refusal> {
        let peer =
            Peer { pid: std::process::id(), uid: rustix::process::getuid().as_raw(), comm: "simulation".to_owned() };
        let context = self.world.lock().open(device, abi::open::profile::MAINLINE, peer)?;
        Ok(SteppedControl { agent: Arc::clone(self), context, network, simulated })
    }

    fn carry_out(&self, context: ContextId, request: &[u8], fds: Vec<OwnedFd>) -> crate::dispatch::Reply {
        let mut world = self.world.lock();
        let reply = dispatch(&mut world, context, request, fds);
        settle(&mut world);
        reply
    }

    fn close(&self, context: ContextId) {
        let mut world = self.world.lock();
        if world.contexts.contains_key(&context) {
            world.close(context);
            settle(&mut world);
        }
    }
}

/// What the server does after each command. Where the wire is somebody else's, no socket is tried again, and the time does not matter.
fn settle(world: &mut World) {
    world.follow_wire(Instant::now);
    world.flush();
}

/// One open of a device of a [`Stepped`] agent.
pub struct SteppedControl {
    agent: Arc<Stepped>,
    context: ContextId,
    network: Arc<dyn Network>,
    simulated: Arc<dyn Simulated>,
}

impl Control for SteppedControl {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> engine::Result<Answer> {
        let fds = fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<std::io::Result<Vec<_>>>()?;
        let reply = self.agent.carry_out(self.context, request, fds);
        if reply.status == 0 {
            return Ok(Answer { bytes: reply.bytes, fds: reply.fds });
        }
        let reason = String::from_utf8_lossy(&reply.bytes).into_owned();
        Err(engine::Error { errno: Errno(reply.status.wrapping_neg()), reason })
    }

    fn network(&self) -> Option<Arc<dyn Network>> {
        Some(Arc::clone(&self.network))
    }

    fn simulated(&self) -> Option<Arc<dyn Simulated>> {
        Some(Arc::clone(&self.simulated))
    }

    fn close(&self) {
        self.agent.close(self.context);
    }
}

impl Drop for SteppedControl {
    fn drop(&mut self) {
        self.agent.close(self.context);
    }
}
