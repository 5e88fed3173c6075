//! How many lanes other users may have into one process, for each costs that process a descriptor: the world as a value.

use abi::Errno;
use abi::command::{extended, legacy, number};
use abi::device::GetContext;
use abi::layout::Record;
use abi::private::{EngineHello, EngineHelloAnswer, LaneOpen, LaneOut};
use agent::Config;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::foreign::Passed;
use agent::world::World;
use rustix::event::{EventfdFlags, eventfd};
use shm::{Bell, Socket};

/// An engine of a user in a process: its context and its push socket.
fn engine(world: &mut World, uid: u32, pid: u32) -> (ContextId, Socket) {
    let id = world.open(0, 0, Peer { pid, uid, comm: "test".into() }).expect("open");
    let get = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48);
    assert_eq!(dispatch(world, id, &get, Vec::new()).status, 0);
    let (_, bell) = Bell::create().expect("a bell");
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let hello = extended(number::ENGINE_HELLO, &EngineHello { pid, flags: 0 }, size_of::<EngineHelloAnswer>(), 0);
    let mut reply = dispatch(world, id, &hello, [bell, kick].map(Passed::ours).into());
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    (id, reply.fds.pop().expect("the push socket").into())
}

fn open(world: &mut World, from: ContextId, to: ContextId, stripe: u32) -> Reply {
    let body = LaneOpen { engine: to.0, stripe };
    dispatch(world, from, &extended(number::LANE_OPEN, &body, size_of::<LaneOut>(), 0), Vec::new())
}

#[test]
fn all_other_users_together_have_a_bounded_number_of_lanes_into_a_process() {
    let mut world = World::new(&Config::default(), "a test").expect("a world");
    // Two engines of one process.
    let victims = [engine(&mut world, 1, 77), engine(&mut world, 1, 77)];
    let mut had = Vec::new();
    for uid in 2..14 {
        let mut lanes = 0;
        // As many engines as it takes.
        'user: for process in 0..4 {
            let (hostile, _push) = engine(&mut world, uid, 1000 + uid * 10 + process);
            for (victim, push) in &victims {
                for stripe in 0..64 {
                    let reply = open(&mut world, hostile, *victim, stripe);
                    if reply.status != 0 {
                        assert_eq!(reply.status, Errno::EMFILE.to_status());
                        continue 'user;
                    }
                    assert_eq!(reply.fds.len(), 4);
                    let pushed = push.try_recv(&mut [0; 256]).expect("told of the lane");
                    assert_eq!(pushed.fds.len(), 4);
                    lanes += 1;
                }
            }
        }
        had.push(lanes);
    }
    assert_eq!(had, [64, 64, 64, 32, 16, 8, 4, 2, 1, 1, 0, 0], "nobody has more than are left for the others");
    // Engines of the same user are not counted.
    let (friend, _push) = engine(&mut world, 1, 78);
    assert_eq!(open(&mut world, friend, victims[0].0, 0).status, 0);
    let known = LaneOut::read(&open(&mut world, friend, victims[0].0, 0).bytes).expect("the same lane");
    assert_eq!(known.engine, victims[0].0.0);
}
