//! Floods of commands that concern other clients: groups, listeners, QP states, captures, rules,
//! imports, freed memory, and full tables.
//!
//! As in `floods.rs`, one user floods from several connections while another user is served. The
//! tests print figures, and judge that all work comes to an end.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::flood::{Figures, MALLORY, agent, become_user, figures, figures_during, quiet};
use crate::common::{Client, TestAgent};
use abi::Errno;
use abi::command::{extended, legacy, number};
use abi::cq::{CreateCq, DestroyCq, PollCq};
use abi::dm::{ImportContext, ImportContextAnswer};
use abi::envelope::{ReplyEnvelope, RequestEnvelope, request as envelope_flag};
use abi::layout::Record;
use abi::mcast::AttachMcast;
use abi::mr::{AllocMw, AllocMwAnswer, RegMr, RegMrAnswer, access, mw_type};
use abi::netlink;
use abi::open::{Open, OpenAnswer, profile};
use abi::private::{Push, push};
use abi::qp::{Dest, ModifyQp, attr, kind, state};
use abi::ucma::address::Bind;
use abi::ucma::connection::{JoinMcast, Listen, WriteCmEvent, event};
use abi::ucma::id::{CreateId, CreateIdAnswer, DestroyId, DestroyIdAnswer};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command, port_space};
use serde_json::json;
use shm::region::Region;
use shm::socket::Socket;

const THREADS: usize = 4;

/// An event channel of the connection manager.
struct Channel {
    socket: Socket,
}

impl Channel {
    fn open(dir: &Path) -> Self {
        let socket = Socket::connect(&dir.join(abi::ucma::NODE)).expect("connected");
        socket.send(Open::new(profile::MAINLINE).bytes(), &[]).expect("sent");
        let mut bytes = [0; 64];
        let opened = socket.recv(&mut bytes).expect("an answer");
        assert_eq!(OpenAnswer::read(&bytes[..opened.len]).expect("whole").status, 0);
        Self { socket }
    }

    /// The first number of the answer, or the error.
    fn call<T: Record>(&self, number: u32, body: &T, room: usize) -> Result<u32, i32> {
        let envelope = RequestEnvelope { sequence: 1, flags: 0 };
        let request = build(number, body, &[], room);
        self.socket.send(&[envelope.bytes(), &request].concat(), &[]).expect("sent");
        let mut bytes = [0; 1024];
        let received = self.socket.recv(&mut bytes).expect("a reply");
        let envelope = ReplyEnvelope::read(&bytes[..received.len]).expect("an envelope");
        let rest = &bytes[size_of::<ReplyEnvelope>()..received.len];
        match envelope.status {
            0 => Ok(rest.first_chunk().copied().map_or(0, u32::from_ne_bytes)),
            status => Err(status),
        }
    }

    fn quiet<T: Record>(&self, number: u32, body: &T, room: usize) {
        let envelope = RequestEnvelope { sequence: 1, flags: envelope_flag::QUIET };
        let request = build(number, body, &[], room);
        self.socket.send(&[envelope.bytes(), &request].concat(), &[]).expect("sent");
    }

    fn create(&self, ps: u16) -> u32 {
        let body = CreateId { uid: 1, response: 1, ps, ..CreateId::default() };
        self.call(command::CREATE_ID, &body, size_of::<CreateIdAnswer>()).expect("an id")
    }

    fn destroy(&self, id: u32) -> u32 {
        let body = DestroyId { response: 1, id, ..DestroyId::default() };
        self.call(command::DESTROY_ID, &body, size_of::<DestroyIdAnswer>()).expect("the id is there")
    }
}

fn judge(agent: &TestAgent, figures: &Figures) {
    assert!(!figures.times.is_empty() && figures.done > 0);
    agent.eventually("status", |status| status["objects"] == 0 && status["manager"]["ids"] == 0);
}

#[test]
fn a_user_who_joins_and_leaves_groups_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "groups", THREADS, |dir, over, done| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        let pd = client.alloc_pd();
        let (cq, ..) = client.create_cq(16);
        let (qp, ..) = client.create_qp(pd, cq, kind::UD);
        let channel = Channel::open(dir);
        let id = channel.create(port_space::UDP);
        let (addr, addr_size) = Sockaddr::Ip((IpAddr::from([127, 0, 0, 1]), 0).into()).emit();
        channel.call(command::BIND, &Bind { id, addr_size, addr, ..Bind::default() }, 0).expect("bound");
        while !over.load(Ordering::Relaxed) {
            for number in [number::ATTACH_MCAST, number::DETACH_MCAST] {
                for group in 0..32 {
                    let mut gid = [0; 16];
                    (gid[0], gid[1], gid[15]) = (0xff, 0x0e, group);
                    let body = AttachMcast { gid, qp_handle: qp.qp_handle, ..AttachMcast::default() };
                    quiet(&mut client.socket, &legacy(number, &body, &[], 0));
                }
            }
            let join = |group: u8| {
                let (addr, addr_size) = Sockaddr::Ip((IpAddr::from([239, 1, 2, group]), 0).into()).emit();
                let body = JoinMcast { response: 1, id, addr_size, addr, ..JoinMcast::default() };
                channel.call(command::JOIN_MCAST, &body, 4).expect("joined")
            };
            for member in (0..32).map(join).collect::<Vec<_>>() {
                channel
                    .call(command::LEAVE_MCAST, &DestroyId { response: 1, id: member, reserved: 0 }, 8)
                    .expect("left");
            }
            client.alloc_pd();
            done.fetch_add(128, Ordering::Relaxed);
        }
    });
    judge(&agent, &figures);
}

/// With 16,000 unread events: the end of an id that has an event makes the agent search them.
#[test]
fn a_user_with_listeners_and_untaken_events_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "listeners", THREADS, |dir, over, done| {
        let channel = Channel::open(dir);
        let write = |id| WriteCmEvent { id, event: event::USER, ..WriteCmEvent::default() };
        let full = channel.create(port_space::TCP);
        for _ in 0..16_000 {
            channel.quiet(command::WRITE_CM_EVENT, &write(full), 0);
        }
        while !over.load(Ordering::Relaxed) {
            let ids: Vec<u32> = (0..64).map(|_| channel.create(port_space::TCP)).collect();
            for id in ids {
                channel.call(command::LISTEN, &Listen { id, backlog: 10 }, 0).expect("listens");
                channel.call(command::WRITE_CM_EVENT, &write(id), 0).expect("room for an event");
                channel.destroy(id);
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    judge(&agent, &figures);
}

#[test]
fn a_user_who_modifies_queue_pairs_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "states", THREADS, |dir, over, done| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        let (_, _, qp) = client.qp();
        let base = ModifyQp { qp_handle: qp.qp_handle, port_num: 1, ..ModifyQp::default() };
        let dest = Dest { port_num: 1, is_global: 1, ..Dest::default() };
        let init = attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS;
        let rtr = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
        let rtr = rtr | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
        let rts = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC | attr::SQ_PSN;
        let steps = [
            ModifyQp { attr_mask: init, qp_state: state::INIT, ..base },
            ModifyQp { attr_mask: rtr, qp_state: state::RTR, path_mtu: 3, dest_qp_num: 5, dest, ..base },
            ModifyQp { attr_mask: rts | attr::STATE, qp_state: state::RTS, ..base },
            ModifyQp { attr_mask: attr::STATE, qp_state: state::RESET, ..base },
        ];
        while !over.load(Ordering::Relaxed) {
            for step in &steps {
                let answer = client.call(&legacy(number::MODIFY_QP, step, &[], 0));
                assert_eq!(answer.status, 0, "{}", answer.reason());
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    judge(&agent, &figures);
}

/// Contexts of Mallory with engines that read the agent's pushes until the flood is over.
fn engines(dir: &Path, count: usize, over: &AtomicBool) {
    let mut clients: Vec<_> = Vec::new();
    for _ in 0..count {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        let (_, push, kick) = client.hello();
        push.set_nonblocking(true).expect("possible");
        clients.push((client, push, kick));
    }
    let mut bytes = [0; 4096];
    while !over.load(Ordering::Relaxed) {
        for (_, push, _) in &clients {
            while push.try_recv(&mut bytes).is_ok_and(|received| received.len > 0) {}
        }
        std::thread::yield_now();
    }
}

/// Floods with requests while the same user has this many engines.
fn questions(name: &str, flood: crate::common::flood::Flood) {
    let Some(agent) = agent() else { return };
    let over = AtomicBool::new(false);
    let count = 48;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(MALLORY);
            engines(&agent.dir, count, &over);
        });
        agent.eventually("show", |shown| shown["contexts"].as_array().is_some_and(|all| all.len() == count));
        let figures = figures(&agent, name, THREADS, flood);
        over.store(true, Ordering::Relaxed);
        judge(&agent, &figures);
    });
}

fn ask(socket: &Socket, question: &serde_json::Value) -> serde_json::Value {
    socket.send(question.to_string().as_bytes(), &[]).expect("sent");
    let answer = agent::admin::receive(socket, || Ok::<(), std::io::Error>(())).expect("an answer");
    serde_json::from_slice(&answer).expect("JSON")
}

#[test]
fn a_user_who_begins_and_ends_captures_does_not_hold_up_another() {
    questions("captures", |dir: &Path, over: &AtomicBool, done: &AtomicU64| {
        while !over.load(Ordering::Relaxed) {
            let socket = Socket::connect(&dir.join(agent::rundir::ADMIN)).expect("connected");
            let begun = ask(&socket, &json!({"request": "capture", "room": 4096}));
            // A user may have three captures at a time. A fourth is refused, and so is one while
            // the agent has not yet seen an earlier connection end.
            assert!(begun["capture"].is_u64() || begun["error"].is_string(), "{begun}");
            done.fetch_add(u64::from(begun["capture"].is_u64()), Ordering::Relaxed);
        }
    });
}

#[test]
fn a_user_who_adds_and_clears_rules_does_not_hold_up_another() {
    questions("rules", |dir: &Path, over: &AtomicBool, done: &AtomicU64| {
        let socket = Socket::connect(&dir.join(agent::rundir::ADMIN)).expect("connected");
        while !over.load(Ordering::Relaxed) {
            let added =
                ask(&socket, &json!({"request": "fault", "do": "add", "rules": "loss rate 1%\nfail create_qp ENOMEM"}));
            let cleared = ask(&socket, &json!({"request": "fault", "do": "clear"}));
            assert!(added["added"].is_array() || added["error"].is_string(), "{added}");
            assert!(cleared["cleared"].is_array(), "{cleared}");
            ask(&socket, &json!({"request": "fault", "do": "list"}));
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Lists all regions of the device again and again. One user has a quarter of a million.
#[test]
fn a_user_who_lists_every_region_does_not_hold_up_another() {
    const REGIONS: u32 = 262_144;
    let Some(agent) = agent() else { return };
    let ready = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(MALLORY);
            let mut client = Client::connect(&agent.dir.join("uverbs0"));
            client.open();
            let (start, pd_handle) = (4096, client.alloc_pd());
            let body = RegMr { response: 1, start, length: 100, hca_va: start, pd_handle, ..RegMr::default() };
            for _ in 0..REGIONS {
                quiet(&mut client.socket, &legacy(number::REG_MR, &body, &[], size_of::<RegMrAnswer>()));
            }
            client.alloc_pd();
            ready.store(true, Ordering::Relaxed);
            while !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        while !ready.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let figures = figures(&agent, "lists of regions", THREADS, |dir, over, done| {
            let socket = Socket::connect(&dir.join(netlink::NODE)).expect("connected");
            let mut bytes = vec![0; 65_536];
            while !over.load(Ordering::Relaxed) {
                let (command, asked) = (5_u16 << 10 | netlink::command::RES_MR_GET, netlink::flag::DUMP);
                let mut request = 24_u32.to_ne_bytes().to_vec();
                request.extend(command.to_ne_bytes());
                request.extend((netlink::flag::REQUEST | asked).to_ne_bytes());
                request.extend([0; 8]);
                request.extend([8_u16.to_ne_bytes(), netlink::attribute::DEV_INDEX.to_ne_bytes()].concat());
                request.extend([0; 4]);
                socket.send(&request, &[]).expect("sent");
                // A whole answer takes longer than the flood, so each message of it counts.
                let is_last = |bytes: &[u8]| netlink::messages(bytes).any(|(header, _)| header.kind <= 3);
                while !over.load(Ordering::Relaxed) {
                    let len = socket.recv(&mut bytes).expect("a message").len;
                    done.fetch_add(1, Ordering::Relaxed);
                    if len == 0 || is_last(&bytes[..len]) {
                        break;
                    }
                }
            }
        });
        over.store(true, Ordering::Relaxed);
        judge(&agent, &figures);
    });
}

/// Imports contexts by a descriptor that belongs to no context, beside dozens of contexts.
#[test]
fn a_user_who_imports_nothing_does_not_hold_up_another() {
    questions("imports", |dir: &Path, over: &AtomicBool, done: &AtomicU64| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        let (_, other) = Region::create("none of them", 4096).expect("memory");
        let import = extended(number::IMPORT_CONTEXT, &ImportContext::default(), size_of::<ImportContextAnswer>(), 0);
        while !over.load(Ordering::Relaxed) {
            let answer = client.call_with(&import, &[other.as_fd()]);
            assert_eq!(answer.status, Errno::EINVAL.to_status(), "{}", answer.reason());
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Ends captures that no client has requested, after their engines have written megabytes to the
/// capture rings.
#[test]
fn a_user_who_ends_captures_full_of_packets_does_not_hold_up_another() {
    const ROOM: usize = 64 << 20;
    const TOUCHED: usize = 4 << 20;
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "captures that end", THREADS, |dir, over, done| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        let (_, pushes, _kick) = client.hello();
        pushes.set_nonblocking(true).expect("possible");
        let mut bytes = [0; 4096];
        while !over.load(Ordering::Relaxed) {
            let socket = Socket::connect(&dir.join(agent::rundir::ADMIN)).expect("connected");
            let begun = ask(&socket, &json!({"request": "capture", "room": ROOM}));
            assert!(begun["capture"].is_u64() || begun["error"].is_string(), "{begun}");
            while let Ok(received) = pushes.try_recv(&mut bytes) {
                let Some(said) = Push::read(&bytes[..received.len]) else { break };
                for ring in received.fds.iter().filter(|_| said.kind == push::CAPTURE) {
                    let memory = Region::map(ring.as_fd(), TOUCHED).expect("as long as it was asked for");
                    (0..TOUCHED).step_by(4096).for_each(|at| memory.write(at, &1_u32));
                }
            }
            done.fetch_add(u64::from(begun["capture"].is_u64()), Ordering::Relaxed);
        }
    });
    judge(&agent, &figures);
}

/// Fills and destroys a large CQ again and again, in a region that other queues keep.
#[test]
fn a_user_who_frees_large_queues_does_not_hold_up_another() {
    let Some(agent) = agent() else { return };
    let figures = figures(&agent, "large queues", 2, |dir, over, done| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        // Regions grow up to 64 MiB. The last of these regions has room for more.
        let mut regions = std::collections::BTreeMap::new();
        let kept: Vec<_> = (12..20).map(|bits| client.create_cq(1 << bits)).collect();
        for (_, out, mut fds) in kept {
            regions.extend(fds.pop().map(|fd| (out.mapping.region, fd)));
        }
        while !over.load(Ordering::Relaxed) {
            let (cq_handle, out, mut fds) = client.create_cq(400_000);
            regions.extend(fds.pop().map(|fd| (out.mapping.region, fd)));
            let len = out.mapping.region_len as usize;
            let memory = Region::map(regions[&out.mapping.region].as_fd(), len).expect("it is mapped");
            let from = out.mapping.offset as usize;
            let to = from + out.mapping.length as usize;
            (from + 4096..to - 4).step_by(4096).for_each(|at| memory.write(at, &1_u32));
            drop(memory);
            let answer =
                client.call(&legacy(number::DESTROY_CQ, &DestroyCq { response: 1, cq_handle, reserved: 0 }, &[], 8));
            assert_eq!(answer.status, 0, "{}", answer.reason());
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    judge(&agent, &figures);
}

/// A client without an engine makes all regions and windows that a user may have. Then the agent
/// runs an engine for it.
#[test]
fn a_user_with_every_region_and_window_does_not_hold_up_another() {
    const SHARE: u32 = 262_144;
    let Some(agent) = agent() else { return };
    let figures = figures_during(&agent, "regions", 1, Duration::from_secs(8), |dir, over, done| {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        let pd_handle = client.alloc_pd();
        let (start, access_flags) = (4096, access::LOCAL_WRITE);
        let body = RegMr { response: 1, start, length: 100, hca_va: start, pd_handle, access_flags };
        let region = legacy(number::REG_MR, &body, &[], size_of::<RegMrAnswer>());
        let body = AllocMw { response: 1, pd_handle, mw_type: mw_type::TYPE_1, ..AllocMw::default() };
        let window = legacy(number::ALLOC_MW, &body, &[], size_of::<AllocMwAnswer>());
        for made in [&region, &window] {
            for _ in 0..SHARE + 1000 {
                quiet(&mut client.socket, made);
                done.fetch_add(1, Ordering::Relaxed);
            }
            let answer = client.call(made);
            assert_eq!(answer.status, Errno::ENOMEM.to_status(), "{}", answer.reason());
        }
        let (cq_handle, ..) = client.create_cq(16);
        let body = CreateCq { response: 1, cqe: 16, comp_channel: -1, ..CreateCq::default() };
        for _ in 0..16_000 {
            quiet(&mut client.socket, &legacy(number::CREATE_CQ, &body, &[], 64));
        }
        // The first of these makes the agent run an engine that knows all these objects.
        while !over.load(Ordering::Relaxed) {
            let poll = legacy(number::POLL_CQ, &PollCq { response: 1, cq_handle, ne: 1 }, &[], 8 + 48);
            let polled = client.call(&poll);
            assert_eq!(polled.status, 0, "{}", polled.reason());
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(figures.done > 2 * u64::from(SHARE));
    judge(&agent, &figures);
}
