//! The lane broker over sockets: which end gets which descriptors, which engine is told of an end,
//! and which requests of a hostile engine are refused.

use std::os::fd::{AsFd, OwnedFd};

use crate::common::{Answer, Client, TestAgent};
use abi::Errno;
use abi::command::{extended, legacy, number};
use abi::envelope::RequestEnvelope;
use abi::layout::Record;
use abi::mcast::AttachMcast;
use abi::private::{EngineHello, LaneOpen, LaneOut, McastResolve, McastResolveAnswer, Push, push};
use abi::qp::kind;
use shm::lane::LANE_LEN;
use shm::region::Region;
use shm::socket::Socket;

fn open_lane(client: &mut Client, engine: u32, lane_index: u32) -> Answer {
    client.call(&extended(number::LANE_OPEN, &LaneOpen { engine, lane_index }, size_of::<LaneOut>(), 0))
}

fn pushed(socket: &Socket) -> (Push, Vec<OwnedFd>) {
    let mut bytes = [0; 64];
    let received = socket.recv(&mut bytes).expect("a push");
    assert_eq!(received.len, size_of::<Push>());
    (Push::read(&bytes).expect("whole"), received.fds)
}

/// Whether two descriptors belong to one memfd: each sees the bytes that were written through the
/// other.
fn same_memory(one: &OwnedFd, two: &OwnedFd) -> bool {
    let (a, b) = (Region::map(one.as_fd(), LANE_LEN).expect("a"), Region::map(two.as_fd(), LANE_LEN).expect("b"));
    a.write(LANE_LEN - 8, &0x1122_3344_u32);
    b.read::<u32>(LANE_LEN - 8) == 0x1122_3344
}

#[test]
fn a_lane_joins_two_engines_and_its_end_is_told() {
    let agent = TestAgent::start();
    let (mut one, mut two) = (agent.client(), agent.client());
    let (first, _push_one, _kick_one) = one.hello();
    let (second, push_two, kick_two) = two.hello();
    assert_ne!(first, second);
    let answer = open_lane(&mut one, second, 0);
    let mine: LaneOut = answer.get(0);
    assert_eq!((mine.side, mine.engine, mine.pid, mine.len), (0, second, std::process::id(), LANE_LEN as u32));
    assert_eq!(answer.fds.len(), 4);
    let (push, fds) = pushed(&push_two);
    assert_eq!((push.kind, push.lane.lane, push.lane.side, push.lane.engine), (push::LANE, mine.lane, 1, first));
    assert!(same_memory(&answer.fds[0], &fds[0]));
    // The peer's notifier of one is the notifier of two.
    rustix::io::write(&answer.fds[2], &5_u64.to_ne_bytes()).expect("rung");
    let mut count = [0; 8];
    rustix::io::read(&kick_two, &mut count).expect("woken");
    assert_eq!(u64::from_ne_bytes(count), 5);

    let again: LaneOut = open_lane(&mut two, first, 0).get(0);
    assert_eq!((again.lane, again.side), (mine.lane, 1), "the same lane from the other side, and no second push");
    assert_ne!(open_lane(&mut two, first, 1).get::<LaneOut>(0).lane, mine.lane);
    drop(one);
    let mut gone: Vec<u32> = (0..2)
        .map(|_| pushed(&push_two).0)
        .map(|push| {
            assert_eq!((push.kind, push.lane.engine), (push::LANE_GONE, first));
            push.lane.lane
        })
        .collect();
    gone.sort_unstable();
    assert_eq!(gone, [mine.lane, mine.lane + 1]);
    let refused = open_lane(&mut two, first, 0);
    assert_eq!(refused.status, Errno::ESRCH.to_status());
    assert!(refused.reason().contains(&format!("engine {first}")));
}

#[test]
fn an_engine_that_never_takes_its_pushes_is_cut_off_and_nobody_else() {
    let agent = TestAgent::start();
    let mut deaf = agent.client();
    let (deaf_engine, deaf_push, _deaf_kick) = deaf.hello();
    // Peers that come and go leave no waiting pushes, except about lanes that the engine has opened
    // itself.
    let mut opened = 0;
    let cut_off = (0..300).any(|_| {
        let mut passing = agent.client();
        let (engine, ..) = passing.hello();
        // While the deaf engine exists, this leaves no push for it.
        open_lane(&mut passing, deaf_engine, 0);
        (1..64).any(|lane_index| {
            let command = extended(number::LANE_OPEN, &LaneOpen { engine, lane_index }, size_of::<LaneOut>(), 0);
            let sent = deaf.socket.send(&[RequestEnvelope::default().bytes(), &command].concat(), &[]);
            opened += 1;
            sent.is_err() || deaf.socket.recv(&mut [0; 512]).map_or(true, |received| received.len == 0)
        })
    });
    assert!(cut_off && opened > 10_000, "the deaf engine is gone at last, after {opened} lanes");
    drop(deaf_push);
    agent.client().qp();
}

/// All pushes that wait for an engine, until it has read everything.
fn all_pushed(client: &mut Client, socket: &Socket) -> Vec<Push> {
    let mut all = Vec::new();
    let mut bytes = [0; 64];
    // A command makes the agent look for room. When it answers, it has pushed everything for which
    // there is room.
    let query = legacy(number::QUERY_DEVICE, &abi::device::QueryDevice { response: 1 }, &[], 176);
    loop {
        let before = all.len();
        while let Ok(received) = socket.try_recv(&mut bytes) {
            assert_ne!(received.len, 0, "the end");
            all.push(Push::read(&bytes[..received.len]).expect("whole"));
        }
        // Room is reported by a separate event, which comes before the command that follows it.
        for _ in 0..2 {
            assert_eq!(client.call(&query).status, 0);
        }
        if all.len() == before {
            return all;
        }
    }
}

#[test]
fn a_program_that_is_stopped_finds_every_state_once_when_it_goes_on() {
    let agent = TestAgent::start();
    let mut stopped = agent.client();
    let (engine, push, _kick) = stopped.hello();
    // It has lanes whose other ends go, and it must be told of each.
    let mut peers: Vec<_> = (0..32).map(|_| agent.client()).collect();
    for peer in &mut peers {
        let (other, ..) = peer.hello();
        (0..64).for_each(|lane_index| assert_eq!(open_lane(&mut stopped, other, lane_index).status, 0));
    }
    drop(peers);
    agent.eventually("status", |status| status["contexts"] == 1);
    // Short-lived programs start and end, ports go down and up, and rules are added and cleared.
    for round in 0..1500 {
        if round % 5 == 0 {
            let mut passing = agent.client();
            passing.hello();
            assert_eq!(open_lane(&mut passing, engine, 0).status, 0);
        }
        agent.handle.set_port(0, 1, round % 2 == 1);
        // Does not wait until every program knows the rules, like a user who presses ^C.
        for what in ["add", "clear"] {
            let question = serde_json::json!({"request": "fault", "do": what, "rules": "loss 1%"});
            agent::admin::ask(&agent.dir, &question).expect("an answer");
        }
    }
    agent.eventually("status", |status| status["contexts"] == 1);
    let all = all_pushed(&mut stopped, &push);
    let count = |kind: u32| all.iter().filter(|push| push.kind == kind).count();
    assert_eq!(
        count(push::LANE_GONE) - count(push::LANE),
        32 * 64,
        "the lanes that it had are gone, and those that it heard of"
    );
    // Some pushes arrived before the socket was full.
    for (kind, name) in [(push::PORTS, "ports"), (push::FAULTS, "rules")] {
        assert!((1..=20).contains(&count(kind)), "{} pushes about {name}", count(kind));
    }
}

#[test]
fn an_engine_that_has_hung_up_is_let_go_by_its_connection() {
    let agent = TestAgent::start();
    let (mut peer, mut leaving) = (agent.client(), agent.client());
    let (other, _push, _kick) = peer.hello();
    let (_, push, _kick) = leaving.hello();
    assert_eq!(open_lane(&mut leaving, other, 0).status, 0);
    // Like a program that ends: its descriptors close one after the other, and a push meanwhile
    // meets a closed socket.
    drop(push);
    drop(peer);
    agent.eventually("status", |status| status["contexts"] == 1);
    leaving.qp();
    drop(leaving);
    agent.eventually("status", |status| status["contexts"] == 0);
}

#[test]
fn engine_hello_refuses_descriptors_that_could_block_peers() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let hello = extended(number::ENGINE_HELLO, &EngineHello::default(), 24, 0);
    let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
    let (_, wake_word) = Region::create("wake-word", 4096).expect("a wake word");
    let file = std::fs::File::open("/dev/null").expect("there");
    for fds in
        [vec![], vec![wake_word.as_fd()], vec![wake_word.as_fd(), pipe.as_fd()], vec![file.as_fd(), file.as_fd()]]
    {
        assert_eq!(client.call_with(&hello, &fds).status, Errno::EINVAL.to_status());
    }
    assert_eq!(open_lane(&mut client, 1, 0).status, Errno::EINVAL.to_status(), "no hello, no lane");
    let (engine, ..) = client.hello();
    assert_eq!(client.call_with(&hello, &[wake_word.as_fd(), pipe.as_fd()]).status, Errno::EEXIST.to_status());
    assert_eq!(open_lane(&mut client, engine, 64).status, Errno::EINVAL.to_status());
}

#[test]
fn groups_know_the_engines_of_their_members() {
    let agent = TestAgent::start();
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xff, 7);
    let resolve =
        extended(number::MCAST_RESOLVE, &McastResolve { gid, max: 64, port: 1, ..McastResolve::default() }, 272, 0);
    let mut clients: Vec<Client> = (0..3).map(|_| agent.client()).collect();
    let engines: Vec<u32> = clients.iter_mut().map(|client| client.hello().0).collect();
    for client in &mut clients[..2] {
        let pd = client.alloc_pd();
        let (cq, ..) = client.create_cq(4);
        for _ in 0..2 {
            let qp_handle = client.create_qp(pd, cq, kind::UD).0.qp_handle;
            let body = AttachMcast { gid, qp_handle, mlid: 0, reserved: 0 };
            for _ in 0..2 {
                assert_eq!(client.call(&legacy(number::ATTACH_MCAST, &body, &[], 0)).status, 0);
            }
        }
    }
    let before: McastResolveAnswer = clients[2].call(&resolve).get(0);
    assert_eq!((before.count, &before.engines[..2]), (2, &engines[..2]));
    clients.remove(0);
    agent.eventually("status", |status| status["contexts"] == 2);
    let after: McastResolveAnswer = clients[1].call(&resolve).get(0);
    assert_eq!((after.count, after.engines[0]), (1, engines[1]));
    assert!(after.epoch > before.epoch);
}

#[test]
fn show_tells_everything_even_when_it_is_long() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let pd = client.alloc_pd();
    let (cq, ..) = client.create_cq(4);
    for _ in 0..300 {
        client.create_qp(pd, cq, kind::UC);
    }
    let shown = agent.ask("show");
    assert_eq!(shown["contexts"][0]["qps"].as_array().map(Vec::len), Some(300));
    assert!(shown.to_string().len() > 64 * 1024, "long enough to come as a file");
    let devices = agent.ask("devices");
    assert_eq!(devices["devices"][0]["ports"][0]["state"], "4: ACTIVE");
    assert!(agent.ask("nonsense")["error"].as_str().is_some_and(|text| text.contains("nonsense")));
}
