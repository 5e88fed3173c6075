//! Two hosts, their connections and the clock. Principal type: [`World`].

use crate::common::{Ram, agreement};
use crate::connection::{Connection, End, Rams};
use crate::plan::{Kind, Mistake, SLOT, WORKS, Work, counted, expose};
use crate::wire::{Harm, Pipe, Random};
use softhca_iwarp::{Agreement, Close, Config, Quirks, Role, Rtr, Status, Stream};
use std::collections::BTreeSet;
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Only delays; bytes are split and merged.
    Delays,
    /// A connection corrupts, resets or drops.
    Harm,
    /// Programs post wrong work requests.
    Mistakes,
    /// The shared receive queue runs dry.
    NoReceives,
    All,
}

/// Two hosts and their connections.
pub(crate) struct World {
    seed: u64,
    random: Random,
    now: Duration,
    rams: Rams,
    connections: Vec<Connection>,
}

impl World {
    pub(crate) fn new(seed: u64, trouble: Trouble) -> World {
        let mut random = Random(seed * 8 + trouble as u64);
        let mut rams = [Ram::default(), Ram::default()];
        let connections = 1 + random.below(4) as u32;
        let mut world = World { seed, now: Duration::ZERO, connections: Vec::new(), rams: rams.clone(), random };
        for number in 0..connections {
            let connection = connect(number, trouble, &mut rams, &mut world.random);
            world.connections.push(connection);
        }
        let is_dry = matches!(trouble, Trouble::NoReceives | Trouble::All);
        for (side, ram) in rams.iter_mut().enumerate() {
            let messages = |connection: &Connection| {
                connection.ends[1 - side].plan.iter().filter(|work| work.is_message()).count() as u64
            };
            let needed = world.connections.iter().map(messages).sum::<u64>();
            let posted = if is_dry { world.random.below(needed + 1) } else { needed };
            for receive in 0..posted {
                ram.post_receive(receive, SLOT);
            }
        }
        world.rams = rams;
        world
    }

    /// Steps by chance, then everything that is left, then the end of each connection.
    pub(crate) fn run(&mut self) {
        for _ in 0..400 * self.connections.len() {
            self.step();
        }
        self.settle();
        for nth in 0..self.connections.len() {
            let side = self.random.below(2) as usize;
            self.connections[nth].close(side, self.now, &self.rams);
            if self.random.is_one_in(4) {
                self.connections[nth].close(1 - side, self.now, &self.rams);
            }
        }
        self.settle();
        // A side that has fallen silent did not see the end: its program closes, too.
        for connection in &mut self.connections {
            for side in 0..2 {
                connection.close(side, self.now, &self.rams);
            }
        }
        self.settle();
        self.now += Config::default().linger;
        self.settle();
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(self.random.below(500));
        let World { random, now, rams, connections, .. } = self;
        let count = connections.len() as u64;
        let connection = &mut connections[random.below(count) as usize];
        let side = random.below(2) as usize;
        connection.expire(side, *now, rams);
        match random.below(4) {
            0 => _ = connection.post(side),
            1 => {
                let fpdus = 1 + random.below(8);
                let _ = (0..fpdus).all(|_| connection.transmit(side, *now, rams, random));
            }
            _ => _ = connection.deliver(side, *now, rams, random),
        }
    }

    /// Does all that can be done until nothing happens any more.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "seed {}: no end", self.seed);
            self.now += Duration::from_millis(31);
            let World { random, now, rams, connections, .. } = self;
            let mut worked = false;
            for connection in connections {
                for side in 0..2 {
                    connection.expire(side, *now, rams);
                    worked |= connection.post(side);
                    worked |= connection.transmit(side, *now, rams, random);
                    worked |= connection.deliver(side, *now, rams, random);
                }
            }
            if !worked {
                return;
            }
        }
    }

    /// Checks what each side was told.
    pub(crate) fn check(&self) {
        for (nth, connection) in (0..).zip(&self.connections) {
            for side in 0..2 {
                let told = |what: &str| format!("seed {}, connection {nth}, side {side}: {what}", self.seed);
                self.check_completions(connection, side, &told);
                self.check_counter(nth, connection, side, &told);
                let end = &connection.ends[side];
                assert!(end.closed.is_some(), "{}", told("the stream has ended"));
                if connection.is_clean {
                    assert_eq!(end.taken.len(), WORKS, "{}", told("posts"));
                    assert_eq!(end.closed, Some(Close::Graceful), "{}", told("the end"));
                    let sent = connection.ends[1 - side].plan.iter().filter(|work| work.is_message()).count();
                    assert_eq!(end.messages, sent, "{}", told("messages"));
                }
            }
        }
        for (side, ram) in self.rams.iter().enumerate() {
            let ended: Vec<u64> = self.connections.iter().flat_map(|of| of.ends[side].received.clone()).collect();
            let waiting: BTreeSet<u64> = ram.posted.iter().map(|receive| receive.id).collect();
            let taken: BTreeSet<u64> = ram.receives.keys().copied().filter(|id| !waiting.contains(id)).collect();
            assert_eq!(ended.len(), taken.len(), "seed {}: each receive request ends once", self.seed);
            assert_eq!(ended.into_iter().collect::<BTreeSet<_>>(), taken, "seed {}", self.seed);
        }
    }

    fn check_completions(&self, connection: &Connection, side: usize, told: &impl Fn(&str) -> String) {
        let end = &connection.ends[side];
        let ended: Vec<u64> = end.completions.iter().map(|(id, _)| *id).collect();
        assert_eq!(ended, end.taken, "{}", told("each work request ends once, in order"));
        for (work, (_, status)) in end.plan.iter().zip(&end.completions) {
            let what = told(&format!("{work:?} {status}"));
            if *status != Status::Success {
                assert!(!connection.is_clean, "{what}");
                assert!(!connection.is_trusted || work.may_fail_with(*status), "{what}");
            } else if connection.is_trusted {
                assert!(work.has_read(&self.rams[side]), "{what}");
                assert!(!connection.is_clean || work.is_placed(&self.rams[1 - side]), "{what}");
                let answered = matches!(work.kind, Kind::Read | Kind::Atomic);
                assert!(work.mistake == Mistake::Nothing || !answered, "{what}");
                assert!(work.mistake != Mistake::Buffer, "{what}");
            }
            let executed = self.rams[side].executed.iter().filter(|id| **id == work.id).count();
            let most = usize::from(work.kind == Kind::Local);
            assert!(executed <= most && (*status != Status::Success || executed == most), "{what}");
        }
    }

    /// Each atomic counts at most once, and sees the value before it.
    fn check_counter(&self, nth: u32, connection: &Connection, side: usize, told: &impl Fn(&str) -> String) {
        if !connection.is_trusted {
            return;
        }
        let end = &connection.ends[side];
        let atomics = end.plan.iter().zip(&end.completions).filter(|(work, _)| work.kind == Kind::Atomic);
        let right: Vec<u64> = atomics
            .clone()
            .filter(|(_, (_, status))| *status == Status::Success)
            .map(|(work, _)| u64::from_ne_bytes(self.rams[side].works[&work.id][..].try_into().expect("8 bytes")))
            .collect();
        assert!(right.iter().copied().eq(0..right.len() as u64), "{}: {right:?}", told("values of atomics"));
        let counted = counted(&self.rams[1 - side], nth);
        let posted = atomics.count() as u64;
        assert!((right.len() as u64..=posted).contains(&counted), "{}", told("the counter"));
    }
}

/// A connection with all properties by chance.
fn connect(number: u32, trouble: Trouble, rams: &mut Rams, random: &mut Random) -> Connection {
    let may_err = matches!(trouble, Trouble::Mistakes | Trouble::All);
    let mut plans = [const { Vec::new() }; 2];
    let [one, two] = rams;
    for (side, plan) in plans.iter_mut().enumerate() {
        let (own, peer) = if side == 0 { (&mut *one, &mut *two) } else { (&mut *two, &mut *one) };
        expose(peer, number);
        plan.extend((0..WORKS).map(|slot| Work::draw(number, slot, may_err, random)));
        plan.iter().for_each(|work| work.prepare(own, peer));
    }
    let harm = if matches!(trouble, Trouble::Harm | Trouble::All) { draw_harm(random) } else { [Harm::Nothing; 2] };
    let corrupts = harm.iter().any(|harm| matches!(harm, Harm::Corrupt(_)));
    let has_crc = !random.is_one_in(4);
    let mistakes = plans.iter().flatten().any(|work: &Work| work.mistake != Mistake::Nothing);
    let is_dry = matches!(trouble, Trouble::NoReceives | Trouble::All);
    let agreements = agree(has_crc, random);
    let config = Config {
        mulpdu: 128 + random.below(2000) as usize,
        depth: 2 + random.below(WORKS as u64) as usize,
        quirks: if random.is_one_in(4) { Quirks::SIW } else { Quirks::default() },
        ..Config::default()
    };
    let mut ends = agreements
        .iter()
        .zip(plans)
        .map(|(agreement, plan)| End::new(Stream::new(agreement, config, Duration::ZERO), plan));
    Connection {
        ends: [(); 2].map(|()| ends.next().expect("two sides")),
        pipes: harm.map(Pipe::new),
        is_trusted: has_crc || !corrupts,
        is_clean: harm == [Harm::Nothing; 2] && !mistakes && !is_dry,
    }
}

fn draw_harm(random: &mut Random) -> [Harm; 2] {
    let mut harm = [Harm::Nothing; 2];
    let at = random.below(20_000);
    harm[random.below(2) as usize] =
        [Harm::Corrupt(at), Harm::Reset(at), Harm::Silence(at), Harm::Nothing][random.below(4) as usize];
    harm
}

/// What both sides agree on. The initiator sends first, if only an RTR message.
fn agree(crc: bool, random: &mut Random) -> [Agreement; 2] {
    let rtr = [Rtr::Send, Rtr::Write, Rtr::Read][random.below(3) as usize];
    let rtr = Some(rtr).filter(|_| !random.is_one_in(3));
    let depth = 1 + random.below(4) as u16;
    let [forth, back] = [random.is_one_in(4), random.is_one_in(4)];
    [(Role::Initiator, forth, back), (Role::Responder, back, forth)].map(|(role, sends, receives)| Agreement {
        crc,
        sends_markers: sends,
        receives_markers: receives,
        ..agreement(role, depth, rtr)
    })
}
