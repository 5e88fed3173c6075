//! What a seed decides before the story begins: the conditions and the connections. The principal
//! type is [`Plan`].

use std::time::Duration;

use fabric::simulation::{Conditions, Simulation};

/// The host of each program.
pub(crate) const PROGRAMS: [usize; 4] = [0, 0, 1, 2];

/// The services that the simulation distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    Xrc,
}

/// A connection between two programs. XRC: the first program is the initiator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) kind: Kind,
    pub(crate) programs: [usize; 2],
    /// Both ends receive from their programs' shared queues.
    pub(crate) shared: bool,
    /// First PSN of each direction.
    pub(crate) psns: [u32; 2],
    /// Path MTU, by its code.
    pub(crate) mtu: u8,
    /// Outstanding READs and atomics.
    pub(crate) depth: u8,
    /// The RNR timer that a receiver without buffers announces, by its code.
    pub(crate) rnr_timer: u8,
}

/// Everything that is decided in advance.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) conditions: Conditions,
    pub(crate) links: Vec<Link>,
    /// The port's MTU in bytes.
    pub(crate) mtu: u32,
    /// Programs that sleep on events instead of polling.
    pub(crate) sleepers: [bool; 4],
    /// A host whose cable is cut for a while: the host, when, and how long.
    pub(crate) cut: Option<(usize, Duration, Duration)>,
    /// A host whose port is down for a while, which is too short for connections to give up.
    pub(crate) down: Option<(usize, Duration, Duration)>,
    /// A program that dies, and when.
    pub(crate) dies: Option<(usize, Duration)>,
    /// The number of requests in each direction.
    pub(crate) requests: u32,
}

impl Plan {
    pub(crate) fn new(simulation: &mut Simulation) -> Self {
        let wraps = simulation.below(8) == 0;
        let code = 1 + simulation.below(5) as u8;
        let mut link = |kind, programs, shared| {
            let psn = |simulation: &mut Simulation| match wraps {
                true => 0xff_ffff - simulation.below(40) as u32,
                false => simulation.below(1 << 24) as u32,
            };
            Link {
                kind,
                programs,
                shared,
                psns: [psn(simulation), psn(simulation)],
                mtu: 1 + simulation.below(u64::from(code)) as u8,
                depth: 1 + simulation.below(4) as u8,
                rnr_timer: 1 + simulation.below(12) as u8,
            }
        };
        let links = vec![
            link(Kind::Rc, [0, 1], false),
            link(Kind::Rc, [0, 2], false),
            link(Kind::Rc, [1, 3], true),
            link(Kind::Rc, [3, 2], true),
            link(Kind::Uc, [0, 3], false),
            link(Kind::Ud, [1, 2], false),
            link(Kind::Xrc, [3, 0], true),
        ];
        let mut links = links;
        // In some seeds, some connections are between other programs.
        for (number, other) in [(3, [1, 0]), (4, [0, 1]), (5, [1, 0]), (6, [1, 0])] {
            if simulation.below(3) == 0 {
                links[number].programs = other;
            }
        }
        Self {
            conditions: conditions(simulation),
            links,
            mtu: 128 << code,
            sleepers: std::array::from_fn(|_| simulation.below(3) == 0),
            cut: (simulation.below(6) == 0).then(|| {
                let host = simulation.below(3) as usize;
                let when = Duration::from_micros(simulation.below(2000));
                // Some cuts are so long that connections have to give up.
                let longest = if simulation.below(4) == 0 { 400_000 } else { 8000 };
                (host, when, Duration::from_micros(100 + simulation.below(longest)))
            }),
            down: (simulation.below(8) == 0).then(|| {
                let host = simulation.below(3) as usize;
                let when = Duration::from_micros(simulation.below(2000));
                (host, when, Duration::from_micros(1 + simulation.below(8000)))
            }),
            dies: (simulation.below(8) == 0)
                .then(|| (simulation.below(4) as usize, Duration::from_micros(simulation.below(1000)))),
            requests: 16 + simulation.below(12) as u32,
        }
    }
}

fn conditions(simulation: &mut Simulation) -> Conditions {
    let mut part = |percent: u64| simulation.below(percent * 100 + 1) as f64 / 10_000.0;
    let (few, many) = (part(3), part(10));
    let scattering = part(100);
    let pauses = part(3);
    let least = Duration::from_nanos(500 + simulation.below(20_000));
    let mut conditions = Conditions {
        delay: (least, least + Duration::from_nanos(simulation.below(20_000))),
        extra_delay: Duration::from_nanos(1000 + simulation.below(400_000)),
        scattering,
        pauses,
        pause: Duration::from_nanos(10_000 + simulation.below(700_000)),
        ..Conditions::default()
    };
    match simulation.below(6) {
        0 => {}
        1 => conditions.loss = many,
        2 => conditions.duplication = many,
        3 => conditions.reordering = many,
        4 => conditions.corruption = many,
        _ => {
            (conditions.loss, conditions.duplication) = (few, few);
            (conditions.reordering, conditions.corruption) = (few, few);
        }
    }
    conditions
}
