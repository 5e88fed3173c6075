//! An engine that owns its agent's state: a command is a call of `dispatch` in the same thread,
//! without sockets. The principal type is [`Solo`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::errno::Errno;
use agent::Config;
use agent::config::WireMode;
use agent::context::{ContextId, Peer};
use agent::dispatch::dispatch;
use agent::foreign::PassedFd;
use agent::world::World;
use engine::{Answer, Control, Engine, Error};
use parking_lot::Mutex;

/// The state of an agent that no thread runs.
pub(crate) struct Solo(Arc<Mutex<World>>);

/// What becomes of the descriptors of an answer.
pub(crate) type Delivery = fn(Vec<OwnedFd>) -> Vec<OwnedFd>;

/// One context of this agent.
struct Direct {
    world: Arc<Mutex<World>>,
    context: ContextId,
    delivery: Arc<Mutex<Delivery>>,
}

impl Solo {
    /// An agent with the default configuration. Its addresses belong to no machine.
    pub(crate) fn new(addresses: &[&str]) -> Self {
        Self::configured(Config::default(), addresses)
    }

    pub(crate) fn configured(config: Config, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        let config = Config { addresses, wire: WireMode::External, ..config };
        let mut world = World::new(&config, "a test").expect("a world");
        world.follow_addresses(&[]);
        Self(Arc::new(Mutex::new(world)))
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        self.engine_of(0)
    }

    /// An engine of a user.
    pub(crate) fn engine_of(&self, uid: u32) -> Arc<Engine> {
        self.engine_with(uid, &Arc::new(Mutex::new(|fds| fds)))
    }

    /// An engine of a user that gets descriptors by way of `delivery`.
    pub(crate) fn engine_with(&self, uid: u32, delivery: &Arc<Mutex<Delivery>>) -> Arc<Engine> {
        let delivery = Arc::clone(delivery);
        let peer = Peer { pid: 0, uid, comm: String::new() };
        let context = self.0.lock().open(0, 0, peer).expect("a context");
        Engine::open(Box::new(Direct { world: Arc::clone(&self.0), context, delivery })).expect("an engine")
    }
}

impl Control for Direct {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer, Error> {
        let fds = fds.iter().map(|fd| PassedFd::ours(fd.try_clone_to_owned().expect("a descriptor"))).collect();
        let mut world = self.world.lock();
        let reply = dispatch(&mut world, self.context, request, fds);
        world.flush(true);
        match reply.status {
            0 => Ok(Answer { bytes: reply.bytes, fds: (self.delivery.lock())(reply.fds) }),
            status => Err(Error::new(Errno(-status), String::from_utf8_lossy(&reply.bytes).into_owned())),
        }
    }

    fn close(&self) {
        self.world.lock().close(self.context);
    }
}
