//! The simulation of a seed, called its story: seven connections of every service between four
//! programs on three hosts, over lanes and over a network. The seed decides what the network does.
//!
//! Each end posts random requests of all kinds, and records the expected result of each: in the
//! peer's memory, in the peer's buffers, in its own memory. Each completion is compared with the
//! record at once, and the memory is compared at the end. The end must be reached within a limit of
//! simulated time. The principal type is [`Story`].

mod completions;
mod end;
mod plan;
mod program;
mod requests;

use std::time::Duration;

use agent::Config;
use fabric::simulation::{Fate, Happened, Seen, Simulation};

use end::{AREA, End, Window};
use plan::{Kind, PROGRAMS, Plan};
use program::{Program, SLOT};

/// The limit of simulated time for a story.
const LIMIT: Duration = Duration::from_secs(20);
/// After the end of the story, nothing more may arrive within this time.
const AFTER: Duration = Duration::from_millis(100);
/// An end that has nothing to do polls again after at most this time.
const IDLE: u64 = 5_000_000;
/// Alarms that belong to no end.
const CUT: u64 = 1 << 32;
const MEND: u64 = CUT + 1;
const DOWN: u64 = CUT + 2;
const UP: u64 = CUT + 3;
const DEATH: u64 = CUT + 4;

/// The result of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// A digest of everything that happened.
    pub(crate) digest: u64,
    /// The number of work requests that were posted and have completed.
    pub(crate) requests: u64,
    /// The duration in simulated time.
    pub(crate) time: Duration,
    /// The number of connections that failed, because the network stopped all packets for long
    /// enough or because an end died.
    pub(crate) failed: u32,
}

/// One seed's programs and connections.
struct Story {
    simulation: Simulation,
    plan: Plan,
    programs: Vec<Program>,
    ends: Vec<End>,
    /// How long each end sleeps next if it has nothing to do.
    sleeps: Vec<u64>,
    requests: u64,
}

/// Runs the story of a seed. The error says which expectation failed. With `aloud`, every step is
/// printed.
pub(crate) fn tell(seed: u64, aloud: bool) -> Result<Told, String> {
    let mut simulation = Simulation::new(seed);
    if aloud {
        simulation.watch(print);
    }
    let mut story = Story::new(simulation);
    if aloud {
        println!("{:?}", story.plan);
    }
    let told = story.run().map_err(|why| format!("seed {seed}, at {:?}: {why}", story.simulation.now()));
    if aloud && told.is_err() {
        for (number, program) in story.programs.iter().enumerate() {
            program.engine.drops().iter().for_each(|drop| println!("program {number} dropped: {}", drop.sentence()));
        }
        story.ends.iter().filter_map(|end| end.qp.cause()).for_each(|cause| println!("{cause}"));
    }
    told
}

impl Story {
    fn new(mut simulation: Simulation) -> Self {
        let plan = Plan::new(&mut simulation);
        let mut config = Config::default();
        config.devices.iter_mut().flat_map(|device| &mut device.ports).for_each(|port| port.mtu = plan.mtu);
        let hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
            .map(|address| simulation.host_with(&[address], &config).expect("a host"));
        simulation.set_conditions(plan.conditions.clone());
        let mut programs = Vec::new();
        for (number, host) in PROGRAMS.into_iter().enumerate() {
            let engine = simulation.connect(hosts[host]).expect("an engine");
            let one_cq = simulation.below(2) == 0;
            programs.push(Program::new(engine, plan.sleepers[number], one_cq));
        }
        let mut ends = Vec::new();
        for link in &plan.links {
            for (side, program) in link.programs.into_iter().enumerate() {
                let number = ends.len();
                ends.push(End::new(number, program, &programs[program], link, side == 0, plan.requests));
            }
        }
        let places: Vec<_> = ends
            .iter()
            .map(|end| (programs[end.program].engine.query_gid(1, 1).expect("a GID"), end.qp.qpn()))
            .collect();
        for number in 0..ends.len() {
            let (side, peer) = (number % 2, number ^ 1);
            let program = ends[number].program;
            ends[number].connect(&programs[program], &plan.links[number / 2], side, places[peer]);
            ends[number].model = ends[peer].memory.bytes(0, AREA);
            if ends[number].kind == Kind::Xrc {
                ends[number].xrc_srq = programs[ends[peer].program].xrc_srq.number();
            }
        }
        let sleeps = vec![0; ends.len()];
        Self { simulation, plan, programs, ends, sleeps, requests: 0 }
    }

    fn run(&mut self) -> Result<Told, String> {
        for number in 0..self.ends.len() {
            let after = Duration::from_nanos(self.simulation.below(20_000));
            self.simulation.alarm(after, number as u64);
        }
        if let Some((_, when, long)) = self.plan.cut {
            self.simulation.alarm(when, CUT);
            self.simulation.alarm(when + long, MEND);
        }
        if let Some((_, when, long)) = self.plan.down {
            self.simulation.alarm(when, DOWN);
            self.simulation.alarm(when + long, UP);
        }
        if let Some((_, when)) = self.plan.dies {
            self.simulation.alarm(when, DEATH);
        }
        while !self.is_over() {
            match self.simulation.step() {
                Some(Happened::Alarm(token)) => self.on_alarm(token)?,
                Some(_) => {}
                None => return Err("nothing happens any more".into()),
            }
            if self.simulation.now() > LIMIT {
                return Err(format!("it does not end: {}", self.open()));
            }
        }
        let time = self.simulation.now();
        let end = time + AFTER;
        while self.simulation.now() < end {
            self.simulation.run_for(AFTER / 10);
            for program in 0..self.programs.len() {
                self.poll(program)?;
            }
        }
        self.compare()?;
        let failed = self.ends.iter().filter(|end| end.failed).count() as u32 / 2;
        Ok(Told { digest: self.simulation.digest(), requests: self.requests, time, failed })
    }

    fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.is_done() && end.is_delivered())
    }

    /// Describes the unfinished ends, for the reader of an error.
    fn open(&self) -> String {
        let open = self.ends.iter().enumerate().filter(|(_, end)| !(end.is_done() && end.is_delivered()));
        let told = open.map(|(number, end)| {
            format!(
                "end {number} ({:?} {:#x} of program {}, state {}): {} of {} posted, {} under way, {} messages not received",
                end.kind,
                end.qp.qpn(),
                end.program,
                end.qp.state(),
                end.posted,
                end.total,
                end.under_way.len(),
                end.messages.len()
            )
        });
        told.collect::<Vec<_>>().join("; ")
    }

    fn on_alarm(&mut self, token: u64) -> Result<(), String> {
        let disturbed = if matches!(token, CUT | MEND) { self.plan.cut } else { self.plan.down };
        if let (CUT..=UP, Some((host, ..))) = (token, disturbed) {
            let host = self.simulation.host_of(PROGRAMS.iter().position(|of| *of == host).unwrap_or(0));
            match token {
                CUT | MEND => self.simulation.cut(host, token == CUT),
                _ => self.simulation.set_port(host, token == UP),
            }
            return Ok(());
        }
        if token == DEATH {
            self.bury();
            return Ok(());
        }
        let number = token as usize;
        let worked = self.act(number)?;
        // An end that has nothing to do polls less and less often.
        self.sleeps[number] = if worked { 20_000 } else { (self.sleeps[number] * 2).clamp(20_000, IDLE) };
        let after = self.simulation.below(self.sleeps[number]);
        self.simulation.alarm(Duration::from_nanos(after), token);
        Ok(())
    }

    /// A program dies. Nobody waits for its requests, and its peers notice the death.
    fn bury(&mut self) {
        let Some((program, _)) = self.plan.dies else { return };
        self.programs[program].engine.close();
        self.programs[program].is_dead = true;
        for number in 0..self.ends.len() {
            if self.ends[number].program == program {
                let peer = self.ends[number].peer;
                self.ends[number].under_way.clear();
                self.ends[number].failed = true;
                self.ends[peer].failed = true;
            }
        }
    }

    /// One step of the program that owns an end. Returns whether the program did anything.
    fn act(&mut self, number: usize) -> Result<bool, String> {
        let program = self.ends[number].program;
        if self.programs[program].is_dead {
            return Ok(false);
        }
        let mut worked = false;
        if self.simulation.below(4) > 0 {
            worked |= self.poll(program)?;
        }
        while self.simulation.below(4) > 0 && self.receive(number) {
            worked = true;
        }
        let end = &mut self.ends[number];
        if let Some((_, window @ Window::Open(_))) = &mut end.window
            && self.simulation.below(6) == 0
            && let Window::Open(key) = *window
        {
            *window = Window::Retired(key);
        }
        let mtu = 128 << self.plan.links[number / 2].mtu;
        for _ in 0..1 + self.simulation.below(3) {
            let mtu = if self.ends[number].kind == Kind::Ud { self.plan.mtu as usize } else { mtu };
            if requests::post(&mut self.simulation, &mut self.ends, number, mtu.min(SLOT - 40)) {
                self.requests += 1;
                worked = true;
            }
        }
        Ok(worked)
    }

    /// Posts a receive buffer for an end, its own or its program's. Returns false if no buffer is
    /// free.
    fn receive(&mut self, number: usize) -> bool {
        let split = self.simulation.below(SLOT as u64 / 2) as usize;
        let end = &mut self.ends[number];
        let owner = &mut self.programs[end.program];
        match (&mut end.slots, end.kind) {
            (Some(slots), _) => slots.free().map(|slot| slots.post(slot, split, |wr| end.qp.post_recv(wr))),
            (None, Kind::Xrc) => {
                let (slots, srq) = (&mut owner.xrc_slots, &owner.xrc_srq);
                slots.free().map(|slot| slots.post(slot, split, |wr| srq.post(wr)))
            }
            (None, _) => {
                let (slots, srq) = (&mut owner.slots, &owner.srq);
                slots.free().map(|slot| slots.post(slot, split, |wr| srq.post(wr)))
            }
        }
        .is_some()
    }
}

/// Prints each step as a line.
fn print(now: Duration, seen: &Seen<'_>) {
    match seen {
        Seen::Sent { from, to, fate, bytes } => {
            let what = wire::Headers::parse(bytes).map_or_else(|_| format!("{} bytes", bytes.len()), |h| h.to_string());
            let fate = if *fate == Fate::Good { String::new() } else { format!("  {fate:?}") };
            println!("{now:>14?}  {from} > {to}  {what}{fate}");
        }
        Seen::Injected { from, dlid, sl, sent, .. } => {
            println!("{now:>14?}  {from} > LID {dlid} SL {sl}{}", if *sent { "" } else { "  lost" });
        }
        Seen::Came { to, segment, bytes } => {
            println!("{now:>14?}      {to}  {} packets", bytes.len().div_ceil(*segment));
        }
        Seen::Turn { program, worked: true } => println!("{now:>14?}  turn of {program}"),
        Seen::Noted(words) => println!("{now:>14?}  {words:x?}"),
        Seen::Turn { .. } | Seen::Managed { .. } | Seen::Alarm(_) | Seen::Stream { .. } | Seen::StreamReset { .. } => {}
    }
}
