//! An agent without a thread, for simulations: the caller carries out each command at once.
//!
//! Nothing here waits, reads the machine's clock or uses its random numbers. So the same commands
//! in the same order have the same answers. The caller also triggers what the server's thread does
//! besides commands. It calls [`Stepped::step`] for the connection manager when a datagram has
//! arrived ([`Stepped::has_datagrams`]) or a timer has expired ([`Stepped::due`]). There are no
//! clients in other processes, no run directory, and no proxy engines. The principal type is
//! [`Stepped`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use abi::Refusal;
use abi::stream::StreamOut;
use engine::{Answer, Control, Network, Simulated};
use parking_lot::Mutex;
use rustix::event::epoll;
use shm::Notifier;

use crate::agent::StartError;
use crate::cm::{ChannelId, Manager, Outside};
use crate::config::Config;
use crate::dispatch::dispatch;
use crate::foreign::PassedFd;
use crate::ids::{ContextId, Peer};
use crate::port_change::{BadChange, PortChange};
use crate::streams::Offer;
use crate::wire::Forwarder;
use crate::world::World;

/// Nothing is due.
const NEVER: u64 = u64::MAX;

/// An agent that runs only in its callers.
pub struct Stepped {
    all: Mutex<All>,
    forwarder: Arc<Forwarder>,
    /// When the manager's next timer expires.
    due: AtomicU64,
    /// An event channel had no room for its events.
    owes: AtomicBool,
    /// Tells [`Stepped::watch`] that `due` or `owes` has changed.
    changed: Notifier,
}

/// The state that a server's thread has.
struct All {
    world: World,
    manager: Manager,
}

impl Stepped {
    /// Creates an agent. The GUIDs of its devices derive from `place`. Its connection manager sends
    /// through `network`, and has the time and random numbers of `simulated`.
    ///
    /// # Errors
    /// The configuration is invalid, or the system has no memory or descriptors left.
    pub fn new(
        config: &Config,
        place: &str,
        network: Arc<dyn Network>,
        simulated: Arc<dyn Simulated>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let mut world = World::new(config, place)?;
        shm::register_barrier();
        world.follow_addresses(&[]);
        world.follow_wire(Instant::now);
        let mut manager = Manager::new(&world, Outside::Simulated(simulated))?;
        manager.set_network(network);
        manager.follow_addresses(&world);
        let forwarder = Arc::clone(world.wire.forwarder());
        Ok(Self {
            all: Mutex::new(All { world, manager }),
            forwarder,
            due: AtomicU64::new(NEVER),
            owes: AtomicBool::new(false),
            changed: Notifier::new()?,
        })
    }

    /// Forwards datagrams of other hosts to this agent's engines.
    pub fn forwarder(&self) -> &Arc<Forwarder> {
        &self.forwarder
    }

    /// Takes a port of a device down, or makes it active again.
    pub fn set_port(&self, device: usize, port: u32, up: bool) {
        self.with(|all| {
            all.world.set_port(device, port, up);
            all.manager.follow_addresses(&all.world);
        });
    }

    /// Changes a port, as a subnet manager does.
    ///
    /// # Errors
    /// A value is not possible.
    pub fn change_port(&self, device: usize, port: u32, change: &PortChange) -> Result<(), BadChange> {
        self.with(|all| {
            let changed = all.world.change_port(device, port, change);
            all.manager.follow_addresses(&all.world);
            changed.map(|_| ())
        })
    }

    /// Whether a management datagram waits for [`Stepped::step`].
    pub fn has_datagrams(&self) -> bool {
        self.forwarder.inlet().has_some()
    }

    /// When the manager's next timer expires, on the simulation's clock.
    pub fn due(&self) -> Option<u64> {
        let due = self.due.load(Ordering::Relaxed);
        (due != NEVER).then_some(due)
    }

    /// Whether an event channel has no room for its events ([`Stepped::bring_events`]).
    pub fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Adds the agent to an epoll set with this number: the set tells each time that a datagram
    /// waits, or that [`Stepped::due`] or [`Stepped::owes`] has changed.
    ///
    /// # Errors
    /// The system has no memory left, or the agent is in the set already.
    pub fn watch(&self, epoll: BorrowedFd<'_>, number: u64) -> std::io::Result<()> {
        let (data, edge) = (epoll::EventData::new_u64(number), epoll::EventFlags::IN | epoll::EventFlags::ET);
        epoll::add(epoll, self.forwarder.inlet().notifier(), data, edge)?;
        Ok(epoll::add(epoll, self.changed.as_fd(), data, edge)?)
    }

    /// Runs the manager: it handles the waiting datagrams and the expired timers.
    pub fn step(&self) {
        self.with(|All { world, manager }| {
            let arrivals = manager.take_arrivals();
            manager.on_datagrams(world, arrivals);
            manager.on_time(world);
        });
    }

    /// Delivers events for which an event channel had no room, as far as there is room now.
    pub fn bring_events(&self) {
        if self.owes() {
            self.with(|All { world, manager }| {
                for channel in manager.take_full() {
                    manager.on_room(world, channel);
                }
            });
        }
    }

    /// Gives a QP of iWARP its connection, as the connection manager does when both programs have
    /// agreed. The engine takes it when the QP goes to RTS.
    pub fn offer_stream(&self, qpn: u32, socket: OwnedFd, agreed: StreamOut) {
        self.with(|all| all.world.wire.streams().offer(qpn, Offer { socket, agreed }));
    }

    /// Opens an event channel of the connection manager. Returns it with its event socket.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn connect_manager(self: &Arc<Self>) -> Result<(SteppedChannel, OwnedFd), Refusal> {
        let (channel, event_socket) = self.with(|all| all.manager.open(peer(), true))?;
        Ok((SteppedChannel { agent: Arc::clone(self), channel }, event_socket))
    }

    /// Opens a device for an engine whose packets go through `network`, and whose time is
    /// `simulated`.
    ///
    /// # Errors
    /// ENODEV if there is no such device.
    pub fn connect(
        self: &Arc<Self>,
        device: usize,
        network: Arc<dyn Network>,
        simulated: Arc<dyn Simulated>,
    ) -> Result<SteppedControl, Refusal> {
        let context = self.with(|all| all.world.open(device, abi::open::profile::MAINLINE, peer()))?;
        Ok(SteppedControl { agent: Arc::clone(self), context, network, simulated })
    }

    fn close(&self, context: ContextId) {
        self.with(|all| {
            if all.world.contexts.contains_key(&context) {
                all.world.close(context);
            }
        });
    }

    /// Runs `action`, and after it what the server does after each command. An external wire tries
    /// no socket again, so the time does not matter.
    fn with<T>(&self, action: impl FnOnce(&mut All) -> T) -> T {
        let mut all = self.all.lock();
        let done = action(&mut all);
        let All { world, manager } = &mut *all;
        world.tell_clients(&mut [manager]);
        for context in std::mem::take(&mut all.world.removed) {
            all.world.end_some_lanes(context, usize::MAX);
        }
        all.world.follow_wire(Instant::now);
        let mut more = all.world.flush(true).more;
        while more {
            more = all.world.flush(false).more;
        }
        let (owes, due) = (all.manager.has_full(), all.manager.due().map_or(NEVER, |at| at.0));
        let owed = self.owes.swap(owes, Ordering::Relaxed);
        if self.due.swap(due, Ordering::Relaxed) != due || owed != owes {
            self.changed.notify();
        }
        done
    }
}

/// All programs of a simulation are this process.
fn peer() -> Peer {
    Peer { pid: std::process::id(), uid: rustix::process::getuid().as_raw(), comm: "simulation".to_owned() }
}

fn owned(fds: &[BorrowedFd<'_>]) -> std::io::Result<Vec<OwnedFd>> {
    fds.iter().map(BorrowedFd::try_clone_to_owned).collect()
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
        let fds = owned(fds).map_err(engine::by_system)?;
        let fds = fds.into_iter().map(PassedFd::ours).collect();
        let reply = self.agent.with(|all| dispatch(&mut all.world, self.context, request, fds));
        reply.granted().map(Answer::from)
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

/// An event channel of a [`Stepped`] agent.
pub struct SteppedChannel {
    agent: Arc<Stepped>,
    channel: ChannelId,
}

impl Control for SteppedChannel {
    fn call(&self, request: &[u8], _fds: &[BorrowedFd<'_>]) -> engine::Result<Answer> {
        let reply = self.agent.with(|All { world, manager }| manager.serve(world, self.channel, request));
        reply.granted().map(Answer::from)
    }

    fn close(&self) {
        self.agent.with(|All { world, manager }| manager.close(world, self.channel));
    }
}

impl Drop for SteppedChannel {
    fn drop(&mut self) {
        Control::close(self);
    }
}
