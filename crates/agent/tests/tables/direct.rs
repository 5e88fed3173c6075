//! DIRECT_ASK and DIRECT_GRANT reach only engines of the same user.

use abi::command::{extended, legacy, number};
use abi::device::GetContext;
use abi::layout::Record;
use abi::private::{DirectAsk, DirectGrant, EngineHello, EngineHelloAnswer, Push, push};
use agent::Config;
use agent::context::{ContextId, Peer};
use agent::dispatch::dispatch;
use agent::foreign::PassedFd;
use agent::world::World;
use rustix::event::{EventfdFlags, eventfd};
use shm::{Socket, WakeWord};

/// An engine of a user: its context, its number and its push socket.
fn engine(world: &mut World, uid: u32) -> (ContextId, u32, Socket) {
    let id = world.open(0, 0, Peer { pid: 1, uid, comm: "test".into() }).expect("open");
    let get = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48);
    assert_eq!(dispatch(world, id, &get, Vec::new()).status, 0);
    let (_, wake_word) = WakeWord::create().expect("a wake word");
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let body = EngineHello { pid: std::process::id(), flags: 0 };
    let hello = extended(number::ENGINE_HELLO, &body, size_of::<EngineHelloAnswer>(), 0);
    let mut reply = dispatch(world, id, &hello, [wake_word, kick].map(PassedFd::ours).into());
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    let number = EngineHelloAnswer::read(&reply.bytes).expect("an answer").engine;
    (id, number, reply.fds.pop().expect("the push socket").into())
}

/// The next push to an engine, and with how many descriptors it came.
fn told(socket: &Socket) -> Option<(u32, u32, usize)> {
    let mut bytes = [0; size_of::<Push>()];
    let received = socket.try_recv(&mut bytes).ok()?;
    let message = Push::read(&bytes[..received.len])?;
    Some((message.kind, message.lane.engine, received.fds.len()))
}

/// A grant table and a file.
fn fds() -> Vec<PassedFd> {
    let file = || rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    vec![PassedFd::ours(file()), PassedFd::ours(file())]
}

#[test]
fn engines_of_another_user_are_neither_asked_nor_given_anything() {
    let mut world = World::new(&Config::default(), "a test").expect("a world");
    // The kernel reports this uid for all users whom the agent's user namespace does not know.
    let nobody = 65_534;
    let engines: Vec<_> = [2, 2, 3, nobody, nobody, 0].map(|uid| engine(&mut world, uid)).into();
    let users = [2, 2, 3, nobody, nobody, 0];
    for (from, (id, own, _)) in engines.iter().enumerate() {
        for (to, (_, engine, socket)) in engines.iter().enumerate() {
            let ask = extended(number::DIRECT_ASK, &DirectAsk { engine: *engine, ..DirectAsk::default() }, 0, 0);
            assert_eq!(dispatch(&mut world, *id, &ask, Vec::new()).status, 0);
            world.flush(false);
            let may = users[from] == users[to] && users[from] != nobody;
            assert_eq!(told(socket), may.then_some((push::DIRECT_ASK, *own, 0)), "{from} asks {to}");
            let grant =
                extended(number::DIRECT_GRANT, &DirectGrant { engine: *engine, ..DirectGrant::default() }, 0, 0);
            assert_eq!(dispatch(&mut world, *id, &grant, fds()).status, 0);
            world.flush(false);
            assert_eq!(told(socket), may.then_some((push::DIRECT, *own, 2)), "{from} gives {to}");
        }
    }
}
