//! Stories in simulated time in addition to those of `simulated`: multicast groups, connections
//! whose first path fails, completion queues that hold events back, and receivers that post late. A
//! seed decides everything, and a failed assertion names it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::wait::nonblocking;
use crate::common::{Plan, QKEY, Side, ah, connect, start};
use abi::cq::{Wc, status};
use abi::errno::Errno;
use abi::event::kind;
use abi::post::opcode;
use abi::qp::migration::{ARMED, MIGRATED, REARM};
use abi::qp::{Dest, ModifyQp, attr};
use agent::Config;
use engine::{CqSpec, SendWr};
use fabric::simulation::{Conditions, Happened, Seen, Simulation};

/// Number of seeds for each story.
const SEEDS: u64 = 200;

fn conditions(simulation: &mut Simulation, most: u64) -> Conditions {
    let mut part = |here: bool| if here { simulation.below(most) as f64 / 100.0 } else { 0.0 };
    let (loss, duplication, reordering, corruption) = (part(true), part(true), part(true), part(true));
    let mut conditions = Conditions { extra_delay: Duration::from_micros(50), ..Conditions::default() };
    match simulation.below(5) {
        0 => {}
        1 => conditions.loss = loss,
        2 => conditions.reordering = reordering,
        3 => (conditions.loss, conditions.corruption) = (loss, corruption),
        _ => (conditions.duplication, conditions.reordering) = (duplication, reordering),
    }
    conditions
}

fn polled(cq: &engine::Cq) -> Vec<Wc> {
    let mut all = Vec::new();
    loop {
        let mut wcs = [Wc::default(); 4];
        match cq.poll(&mut wcs).expect("a device") {
            0 => return all,
            count => all.extend_from_slice(&wcs[..count]),
        }
    }
}

fn datagram(number: usize) -> Vec<u8> {
    (0..40 + number * 13).map(|at| (at * 5 + number * 7) as u8 ^ number as u8).collect()
}

/// One member of a group on each of three hosts, and a second one on the first host. The sender is
/// no member.
fn tell_group(seed: u64) {
    const ROOM: usize = 1024;
    let mut simulation = Simulation::new(seed);
    let Conditions { loss, duplication, corruption, .. } = conditions(&mut Simulation::new(seed), 12);
    let spoilt = conditions(&mut simulation, 12);
    let hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| simulation.host(address).expect("a host"));
    let mut plan = Plan::ud();
    plan.caps.max_recv_wr = 32;
    let mut side = |host: usize| Side::new(&simulation.connect(hosts[host]).expect("an engine"), &plan);
    let sender = side(0);
    let members = [side(0), side(0), side(1), side(2)];
    let outsider = side(1);
    [&sender, &outsider].into_iter().chain(&members).for_each(start);
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 7, 1];
    members.iter().for_each(|member| member.qp.attach_mcast(&gid, 0).expect("attached"));
    for side in members.iter().chain([&outsider]) {
        (0..32).for_each(|place| side.recv(place, place as usize * ROOM, ROOM));
    }
    simulation.set_conditions(spoilt);
    let to_all = ah(&sender.pd, gid, sender.gid_index());
    for number in 0..16 {
        let bytes = datagram(number);
        sender.memory.put(0, &bytes);
        let ud = Some((&*to_all, 0xff_ffff, QKEY));
        sender.post(&SendWr { ud, sges: &sender.sge(0, bytes.len()), ..SendWr::default() });
        let pause = simulation.below(30_000);
        simulation.run_for(Duration::from_nanos(pause));
        let done = simulation.run_until(Duration::from_secs(1), || !polled(&sender.scq).is_empty());
        assert!(done, "seed {seed}: datagram {number} is not sent");
    }
    simulation.run_for(Duration::from_secs(1));
    for (number, member) in members.iter().enumerate() {
        let mut came = [0; 16];
        for wc in polled(&member.rcq) {
            assert_eq!((wc.status, wc.src_qp), (status::SUCCESS, sender.qp.qpn()), "seed {seed}");
            let len = wc.byte_len as usize - 40;
            let which = (len - 40) / 13;
            let there = member.memory.get(wc.wr_id as usize * ROOM + 40, len);
            assert!(there == datagram(which), "seed {seed}: member {number} has datagram {which} in parts");
            came[which] += 1;
        }
        let (least, most) = match (number < 2, loss + corruption, duplication) {
            (true, ..) => (1, 1),
            (false, harm, twice) => (usize::from(harm == 0.0), if twice > 0.0 { 2 } else { 1 }),
        };
        let right = came.iter().all(|count| (least..=most).contains(count));
        assert!(right, "seed {seed}: member {number} has {came:?}");
    }
    assert!(polled(&outsider.rcq).is_empty(), "seed {seed}: who is no member has something");
}

#[test]
fn each_member_of_a_group_gets_each_datagram_at_most_once() {
    (0..SEEDS).for_each(tell_group);
}

fn set(side: &Side, path_mig_state: u8) {
    side.modify(&ModifyQp { attr_mask: attr::PATH_MIG_STATE, path_mig_state, ..ModifyQp::default() });
}

fn load(from: &Side, to: &Side) {
    let dgid = to.engine.query_gid(1, 2).expect("a GID");
    let alt_dest = Dest { dgid, sgid_index: 2, is_global: 1, port_num: 1, hop_limit: 64, ..Dest::default() };
    let path =
        ModifyQp { attr_mask: attr::ALT_PATH, alt_dest, alt_port_num: 1, alt_timeout: 12, ..ModifyQp::default() };
    from.modify(&path);
}

fn migration_state(side: &Side) -> u8 {
    side.qp.query(u32::MAX).expect("an answer").path_mig_state
}

/// How often a side was told that its path has changed.
fn told_of_path(side: &Side) -> usize {
    nonblocking(side.engine.async_fd());
    let mut count = 0;
    loop {
        match side.engine.async_event() {
            Ok(event) => count += usize::from(event.kind == kind::PATH_MIG),
            Err(errno) => {
                assert_eq!(errno, Errno::EAGAIN);
                return count;
            }
        }
    }
}

/// Both ends post WRITEs and READs. At some time the first path loses all packets. Returns whether
/// this was in the middle.
fn tell_migration(seed: u64) -> bool {
    const PLACE: usize = 8192;
    const COUNT: usize = 12;
    let mut simulation = Simulation::new(seed);
    let addresses = [["10.0.0.1", "10.0.1.1"], ["10.0.0.2", "10.0.1.2"]];
    let hosts = addresses.map(|both| simulation.host_with(&both, &Config::default()).expect("a host"));
    let plan = Plan { memory: 4 * COUNT * PLACE, timeout: 12, retry_cnt: 7, ..Plan::rc() };
    let sides = hosts.map(|host| Side::new(&simulation.connect(host).expect("an engine"), &plan));
    let [a, b] = &sides;
    connect(a, b);
    load(a, b);
    load(b, a);
    set(a, REARM);
    set(b, REARM);
    let mut rounds = 0;
    while [migration_state(a), migration_state(b)] != [ARMED; 2] {
        for (from, to) in [(a, b), (b, a)] {
            let (rkey, remote_addr) = (to.mr.rkey(), to.memory.addr(0));
            from.post(&SendWr {
                opcode: opcode::RDMA_WRITE,
                rkey,
                remote_addr,
                sges: &from.sge(0, 8),
                ..SendWr::default()
            });
            assert!(simulation.run_until(Duration::from_secs(9), || !polled(&from.scq).is_empty()), "seed {seed}");
        }
        rounds += 1;
        assert!(rounds < 20, "seed {seed}: they are not armed");
    }
    let spoilt = conditions(&mut simulation, 4);
    simulation.set_conditions(spoilt);
    let when = Duration::from_nanos(simulation.below(150_000));
    let which = simulation.below(2) as usize;
    simulation.alarm(when, 1);
    // WRITEs go from the first to the third quarter of the memory, READs from the second to the
    // fourth.
    let place = |quarter: usize, number: usize| (quarter * COUNT + number) * PLACE;
    let lengths: Vec<usize> = (0..2 * COUNT).map(|_| 1 + simulation.below(PLACE as u64) as usize).collect();
    for (number, side) in sides.iter().enumerate() {
        side.memory.pattern(0, 2 * COUNT * PLACE, 3 + number);
        side.memory.put(2 * COUNT * PLACE, &vec![0; 2 * COUNT * PLACE]);
    }
    for (from, to) in [(a, b), (b, a)] {
        for (wr_id, len) in lengths.iter().enumerate() {
            let (number, is_read) = (wr_id / 2, wr_id % 2 == 1);
            let (opcode, here, there) = match is_read {
                true => (opcode::RDMA_READ, place(3, number), place(1, number)),
                false => (opcode::RDMA_WRITE, place(0, number), place(2, number)),
            };
            let (rkey, remote_addr) = (to.mr.rkey(), to.memory.addr(there));
            let sges = &from.sge(here, *len);
            from.post(&SendWr { wr_id: wr_id as u64, opcode, rkey, remote_addr, sges, ..SendWr::default() });
        }
    }
    let (mut done, mut in_the_middle) = ([Vec::new(), Vec::new()], false);
    while done.iter().any(|done| done.len() < 2 * COUNT) {
        assert!(
            simulation.now() < Duration::from_secs(60),
            "seed {seed}: no end, {} and {}",
            done[0].len(),
            done[1].len()
        );
        let happened = simulation.step();
        if happened == Some(Happened::Alarm(1)) {
            simulation.cut_path(addresses[which][0].parse().expect("an address"), true);
            in_the_middle = true;
        }
        assert!(happened.is_some(), "seed {seed}: nothing happens any more");
        for (side, done) in sides.iter().zip(&mut done) {
            done.extend(polled(&side.scq).into_iter().map(|wc| (wc.wr_id, wc.status)));
        }
    }
    let expected: Vec<_> = (0..2 * COUNT as u64).map(|wr_id| (wr_id, status::SUCCESS)).collect();
    assert!(done.iter().all(|done| *done == expected), "seed {seed}: {done:?}");
    for (from, to) in [(a, b), (b, a)] {
        for (wr_id, len) in lengths.iter().enumerate() {
            let number = wr_id / 2;
            let same = match wr_id % 2 {
                1 => from.memory.get(place(3, number), *len) == to.memory.get(place(1, number), *len),
                _ => to.memory.get(place(2, number), *len) == from.memory.get(place(0, number), *len),
            };
            assert!(same, "seed {seed}: the bytes of request {wr_id} are others");
        }
    }
    for side in &sides {
        let (told, now) = (told_of_path(side), migration_state(side));
        assert!(told <= 1 && (told == 1) == (now == MIGRATED), "seed {seed}: told {told} times, in state {now}");
        assert!(in_the_middle || told == 0, "seed {seed}: nothing was cut");
    }
    in_the_middle
}

#[test]
fn a_connection_goes_on_by_its_other_path() {
    let cut = (0..SEEDS).filter(|seed| tell_migration(*seed)).count();
    assert!(cut > SEEDS as usize / 4, "only {cut} were cut in the middle");
}

/// Messages at random times, and a receiver that sleeps until an event. No message waits longer
/// than its queue holds events back.
fn tell_moderation(seed: u64) -> usize {
    const COUNT: usize = 30;
    let mut simulation = Simulation::new(seed);
    // If no other program uses a processor, an engine runs at once. Otherwise it runs late, both
    // after a notification and after its timer.
    let pauses = if simulation.below(2) == 0 { 0.0 } else { 0.2 };
    let pause = Duration::from_micros(300);
    simulation.set_conditions(Conditions { pauses, pause, ..Conditions::default() });
    let hosts = ["10.0.0.1", "10.0.0.2"].map(|address| simulation.host(address).expect("a host"));
    let plan = Plan::rc();
    let a = Side::new(&simulation.connect(hosts[0]).expect("an engine"), &plan);
    let host = usize::from(simulation.below(3) > 0);
    let ours = simulation.connect(hosts[host]).expect("an engine");
    let channel = ours.create_channel().expect("a channel");
    nonblocking(channel.fd());
    let cq = ours.create_cq(&CqSpec { cqe: 64, channel: Some(&channel), comp_vector: 0, cookie: 5 }).expect("a CQ");
    let b = Side::on_cqs(&ours, &ours.alloc_pd().expect("a PD"), &plan, (&cq, &cq), None);
    connect(&a, &b);
    (0..COUNT as u64).for_each(|wr_id| b.recv(wr_id, 0, 0));
    let (count, period) = (1 + simulation.below(8) as u16, 1 + simulation.below(400) as u16);
    cq.moderate(count, period).expect("moderated");
    cq.req_notify(false).expect("armed");
    for number in 0..COUNT as u64 {
        let when = Duration::from_nanos(simulation.below(3_000_000));
        simulation.alarm(when, number);
    }
    let (mut sent, mut seen, mut events) = (Vec::new(), 0, 0);
    let slack = Duration::from_micros(20) + if pauses > 0.0 { 2 * pause } else { Duration::ZERO };
    while seen < COUNT {
        let happened = simulation.step().unwrap_or_else(|| panic!("seed {seed}: {seen} were told, and no more come"));
        if let Happened::Alarm(_) = happened {
            a.post(&SendWr::default());
            sent.push(simulation.now());
        }
        let _ = polled(&a.scq);
        if let Ok(cookie) = channel.next_event() {
            assert_eq!(cookie, 5);
            events += 1;
            // Simulated time stands still, so nothing arrives between the last poll and the arming.
            seen += polled(&cq).len();
            cq.req_notify(false).expect("armed");
        }
        let waits = sent.get(seen).map_or(Duration::ZERO, |oldest| simulation.now() - *oldest);
        let most = Duration::from_micros(period.into()) + slack;
        assert!(waits <= most, "seed {seed}: message {seen} waits for {waits:?}, with {count} in {period} us");
    }
    assert!(events <= COUNT, "seed {seed}: {events} events");
    events
}

#[test]
fn each_completion_is_told_in_time_or_count() {
    let events: usize = (0..SEEDS).map(tell_moderation).sum();
    assert!(events * 3 < SEEDS as usize * 30 * 2, "{events} events: nothing is held back");
}

/// Messages of packets that overtake each other, to a receiver that posts its buffers late. Returns
/// the number of packets that the sender needed.
fn tell_late_buffers(seed: u64, reordering: f64) -> usize {
    const LEN: usize = 40_000;
    const COUNT: usize = 4;
    let mut simulation = Simulation::new(seed);
    let hosts = ["10.0.0.1", "10.0.0.2"].map(|address| simulation.host(address).expect("a host"));
    let plan = Plan { memory: COUNT * LEN, ..Plan::rc() };
    let [a, b] = hosts.map(|host| Side::new(&simulation.connect(host).expect("an engine"), &plan));
    connect(&a, &b);
    let extra_delay = Duration::from_micros(30);
    simulation.set_conditions(Conditions { reordering, extra_delay, pauses: 0.0, ..Conditions::default() });
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    simulation.watch(move |_, seen| {
        if let Seen::Sent { from: 0, .. } = seen {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    a.memory.pattern(0, COUNT * LEN, 3);
    for number in 0..COUNT {
        a.post(&SendWr { sges: &a.sge(number * LEN, LEN), ..SendWr::default() });
        let late = Duration::from_nanos(simulation.below(300_000));
        simulation.run_for(late);
        b.recv(number as u64, number * LEN, LEN);
        let came = simulation.run_until(Duration::from_secs(1), || !polled(&b.rcq).is_empty());
        assert!(came, "seed {seed}: message {number} does not come");
        assert!(b.memory.get(number * LEN, LEN) == a.memory.get(number * LEN, LEN), "seed {seed}: message {number}");
    }
    sent.load(Ordering::Relaxed)
}

/// Packets that wait for a buffer are put in order too.
#[test]
fn reordered_packets_for_a_late_receive_are_not_sent_again() {
    let whole = tell_late_buffers(0, 0.0);
    for seed in 0..SEEDS {
        assert_eq!(tell_late_buffers(seed, 0.2), whole, "seed {seed}");
    }
}

#[test]
fn these_stories_are_told_twice_the_same() {
    let told = |seed| {
        let mut simulation = Simulation::new(seed);
        let drawn = conditions(&mut simulation, 12);
        (format!("{drawn:?}"), simulation.below(1000))
    };
    assert_eq!(told(7), told(7));
    assert_ne!(told(7), told(8));
    assert!((0..SEEDS).step_by(50).all(|seed| tell_migration(seed) == tell_migration(seed)));
    assert!((0..SEEDS).step_by(50).all(|seed| tell_moderation(seed) == tell_moderation(seed)));
}
