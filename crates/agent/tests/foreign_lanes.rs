//! How many lanes a user may have, into processes of others and between its own processes. Each
//! lane costs descriptors, and lanes end in pieces. The tests use the world as a value, and a
//! process whose descriptors are counted.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use abi::Errno;
use abi::command::{extended, legacy, number};
use abi::device::GetContext;
use abi::layout::Record;
use abi::private::{EngineHello, EngineHelloAnswer, LaneOpen, LaneOut, Push, lane_flags};
use agent::Config;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::foreign::PassedFd;
use agent::world::World;
use common::Client;
use common::hostile::{HANG, OTHER, as_user, for_everybody};
use engine::{Engine, SocketControl};
use rustix::event::{EventfdFlags, eventfd};
use shm::{Socket, WakeWord};

/// An engine of a user in a process: its context and its push socket.
fn engine(world: &mut World, uid: u32, pid: u32) -> (ContextId, Socket) {
    let id = world.open(0, 0, Peer { pid, uid, comm: "test".into() }).expect("open");
    let get = legacy(number::GET_CONTEXT, &GetContext { response: 1 }, &[], 48);
    assert_eq!(dispatch(world, id, &get, Vec::new()).status, 0);
    let (_, wake_word) = WakeWord::create().expect("a wake word");
    let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let hello = extended(number::ENGINE_HELLO, &EngineHello { pid, flags: 0 }, size_of::<EngineHelloAnswer>(), 0);
    let mut reply = dispatch(world, id, &hello, [wake_word, kick].map(PassedFd::ours).into());
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    (id, reply.fds.pop().expect("the push socket").into())
}

fn open(world: &mut World, from: ContextId, to: ContextId, lane_index: u32) -> Reply {
    let body = LaneOpen { engine: to.0, lane_index };
    let reply = dispatch(world, from, &extended(number::LANE_OPEN, &body, size_of::<LaneOut>(), 0), Vec::new());
    world.flush(false);
    reply
}

#[test]
fn all_other_users_together_have_a_bounded_number_of_lanes_into_a_process() {
    let mut world = World::new(&Config::default(), "a test").expect("a world");
    // Two engines of one process.
    let victims = [engine(&mut world, 1, 77), engine(&mut world, 1, 77)];
    let mut had = Vec::new();
    for uid in 2..14 {
        let mut lanes = 0;
        // As many engines as necessary.
        'user: for process in 0..4 {
            let (hostile, _push) = engine(&mut world, uid, 1000 + uid * 10 + process);
            for (victim, push) in &victims {
                for lane_index in 0..64 {
                    let reply = open(&mut world, hostile, *victim, lane_index);
                    if reply.status != 0 {
                        assert_eq!(reply.status, Errno::EMFILE.to_status());
                        continue 'user;
                    }
                    assert_eq!(reply.fds.len(), 4);
                    let out = LaneOut::read(&reply.bytes).expect("whole");
                    assert_eq!((out.side, out.flags), (0, lane_flags::APART));
                    let mut bytes = [0; 256];
                    let pushed = push.try_recv(&mut bytes).expect("told of the lane");
                    assert_eq!(pushed.fds.len(), 4);
                    let told = Push::read(&bytes[..pushed.len]).expect("whole");
                    assert_eq!((told.lane.side, told.lane.flags), (1, lane_flags::APART));
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
    assert_eq!((known.engine, known.side), (victims[0].0.0, 0));
}

/// An agent's world in which users are kept apart, in a process that may have many descriptors.
fn world_of_many() -> World {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("raised");
    World::new(&Config { system: true, ..Config::default() }, "a test").expect("a world")
}

/// An engine has 64 lanes to each of many engines of the same user. They end in pieces, and a
/// victim is served after each piece.
#[test]
fn thousands_of_lanes_between_a_users_engines_end_in_pieces() {
    const ENGINES: u32 = 48;
    const PIECE: usize = 256;
    let mut world = world_of_many();
    let hostile = engine(&mut world, 1, 77);
    let others: Vec<_> = (0..ENGINES).map(|number| engine(&mut world, 1, 100 + number)).collect();
    let (victim, _push) = engine(&mut world, 2, 78);
    for (other, push) in &others {
        for lane_index in 0..64 {
            assert_eq!(open(&mut world, hostile.0, *other, lane_index).status, 0);
            assert_eq!(push.try_recv(&mut [0; 256]).expect("told of the lane").fds.len(), 4);
        }
    }
    assert_eq!(world.lanes.len(), 64 * ENGINES as usize);
    let (mut pieces, mut served) = (1, 0);
    let mut before = world.lanes.len();
    while !world.close_some(hostile.0, PIECE) {
        assert!(before - world.lanes.len() <= PIECE, "one piece ends {} lanes", before - world.lanes.len());
        before = world.lanes.len();
        let query = legacy(number::QUERY_DEVICE, &abi::device::QueryDevice { response: 1 }, &[], 176);
        served += u32::from(dispatch(&mut world, victim, &query, Vec::new()).status == 0);
        pieces += 1;
    }
    assert!(
        pieces >= 64 * ENGINES as usize / PIECE && served as usize == pieces - 1,
        "{pieces} pieces, {served} served"
    );
    assert!(world.lanes.is_empty() && !world.contexts.contains_key(&hostile.0));
    let gone = |push: &Socket| std::iter::from_fn(|| push.try_recv(&mut [0; 256]).ok()).count();
    world.flush(true);
    assert!(others.iter().all(|(_, push)| gone(push) > 0), "all are told");
}

#[test]
fn lanes_between_a_users_own_engines_have_an_end() {
    let mut world = world_of_many();
    (world.users.lanes, world.users.proxy_lanes) = (20, 5);
    let (one, _push) = engine(&mut world, 1, 77);
    let (two, _push) = engine(&mut world, 1, 78);
    let opened = |world: &mut World, from, to| {
        let replies = (0..64).map(|lane_index| open(world, from, to, lane_index));
        let (had, refused): (Vec<_>, Vec<_>) = replies.partition(|reply| reply.status == 0);
        assert!(refused.iter().all(|reply| reply.status == Errno::EMFILE.to_status()));
        (had.len(), refused.first().map(|reply| String::from_utf8_lossy(&reply.bytes).into_owned()))
    };
    // A proxy engine: the agent maps the lanes that lead to it.
    let (proxy, _push) = engine(&mut world, 1, 79);
    world.contexts.get_mut(&proxy).expect("open").has_proxy = true;
    let (had, why) = opened(&mut world, one, proxy);
    assert!(had == 5 && why.as_ref().is_some_and(|why| why.contains("that the agent runs: 5")), "{had}: {why:?}");
    assert_eq!(opened(&mut world, proxy, two).0, 0, "whoever asks");
    let (had, why) = opened(&mut world, one, two);
    assert!(had == 15 && why.as_ref().is_some_and(|why| why.contains("share of lanes: 20")), "{had}: {why:?}");
    // Another user has a share of its own, and ended lanes are given back.
    let ((three, _push), (four, _other)) = (engine(&mut world, 2, 80), engine(&mut world, 2, 81));
    assert_eq!(opened(&mut world, three, four).0, 20);
    world.close(proxy);
    assert_eq!(opened(&mut world, one, two).0, 20, "15 that are there, and 5 more");
}

/// A lane that is made takes a number, and the memory of a lane is made with it. A refused lane
/// takes none.
#[test]
fn a_refused_lane_is_not_made() {
    let mut world = world_of_many();
    world.users.lanes = 3;
    let [(one, _push), (two, _other)] = [77, 78].map(|pid| engine(&mut world, 1, pid));
    let number = |reply: Reply| {
        assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
        LaneOut::read(&reply.bytes).expect("whole").lane
    };
    let lanes: Vec<u32> = (0..3).map(|lane_index| number(open(&mut world, one, two, lane_index))).collect();
    for lane_index in 3..60 {
        assert_eq!(open(&mut world, one, two, lane_index).status, Errno::EMFILE.to_status());
    }
    assert_eq!(number(open(&mut world, two, one, 2)), lanes[2], "the lanes that are there can be asked for again");
    world.users.lanes = 4;
    assert_eq!(number(open(&mut world, one, two, 60)), lanes[2] + 1, "a refused lane was made");
    assert_eq!(world.lanes.len(), 4);
}

/// The variable that tells the victim where its agent is.
const DIR: &str = "SOFTHCA_TEST_VICTIM";
/// Most lanes of all other users together. One of their lanes costs the victim one descriptor, like
/// a lane of its own user.
const LANES: usize = 256;

/// The victim: this program, started a second time.
#[test]
fn victim_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let node = std::path::Path::new(&dir).join("uverbs0");
    let _engine = as_user(OTHER, || Engine::open(Box::new(SocketControl::open(&node, 0).expect("an agent"))));
    println!("\nit is there");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn foreign_lanes_cost_a_process_a_bounded_number_of_descriptors() {
    let Some(agent) = for_everybody() else { return };
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "victim_process", "--nocapture"]).env(DIR, &agent.dir);
    let mut victim = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut said = BufReader::new(victim.stdout.take().expect("piped")).lines();
    assert!(said.any(|line| line.is_ok_and(|line| line == "it is there")), "the victim does not start");
    let engine = agent.ask("show")["contexts"][0]["context"].as_u64().expect("a number") as u32;
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", victim.id())).expect("it lives").count();
    let becomes = |wanted: usize| {
        let end = Instant::now() + HANG;
        while fds() != wanted {
            assert!(Instant::now() < end, "the victim has {} descriptors and should have {wanted}", fds());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let connect = |uid| {
        as_user(uid, || {
            let mut client = Client::connect(&agent.dir.join("uverbs0"));
            client.open();
            let (_, push, kick) = client.hello();
            (client, push, kick)
        })
    };
    let lane = |client: &mut Client, lane_index| {
        let body = LaneOpen { engine, lane_index };
        client.call(&extended(number::LANE_OPEN, &body, size_of::<LaneOut>(), 0))
    };
    let before = fds();
    let (mut hostile, mut lanes) = (Vec::new(), 0);
    for uid in OTHER + 1..OTHER + 14 {
        for _ in 0..2 {
            let (mut client, push, kick) = connect(uid);
            for lane_index in 0..64 {
                let answer = lane(&mut client, lane_index);
                lanes += usize::from(answer.status == 0);
                if answer.status != 0 {
                    assert_eq!(answer.status, Errno::EMFILE.to_status());
                    assert!(answer.reason().contains("256"), "{}", answer.reason());
                    break;
                }
            }
            hostile.push((client, push, kick));
        }
    }
    assert_eq!(lanes, LANES, "so many and no more");
    becomes(before + LANES);
    // Programs of its own user are not counted.
    let (mut friend, _push, _kick) = connect(OTHER);
    assert_eq!(lane(&mut friend, 0).status, 0);
    becomes(before + LANES + 1);
    // Ended lanes are given back.
    drop((hostile, friend));
    becomes(before);
    drop(victim.stdin.take());
    victim.wait().expect("it ends");
}
