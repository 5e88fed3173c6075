//! A thread of the answering side: it sends messages back, or only polls, until the last message of
//! each queue pair. The principal function is [`run`].

use crate::contents::{Pattern, mark};
use crate::error::{Error, Result};
use crate::figures::Tally;
use crate::look::{Look, Vain};
use crate::plan::{Operation, Plan};
use crate::stream::{Numbers, Stream};
use crate::team::{Team, WORD};
use crate::window::in_window;

/// How often the thread polls memory before it polls once the queue for the last message.
const LOOKS: u32 = 16;

/// Prepares the memory for a size.
pub(crate) fn prepare(team: &Team, plan: &Plan, size: usize) {
    team.clear();
    if plan.operation == Operation::Read && plan.verify {
        let mut pattern = Pattern::default();
        for lane in 0..team.qps.len() {
            for slot in 0..team.slots as u64 {
                team.window.write(team.range(lane, slot, size).start, pattern.make(size, lane, slot));
            }
        }
    }
}

/// Answers one size.
pub(crate) fn run(team: &Team, look: Look<'_>, plan: &Plan, size: usize) -> Result<(Option<Tally>, Numbers)> {
    let mut answering = Answering {
        team,
        plan,
        look,
        size,
        stream: Stream::new(team, plan, size),
        pattern: Pattern::default(),
        last: 0,
        came: vec![0; team.qps.len()],
    };
    if plan.is_answered() && plan.operation == Operation::Write && !plan.is_announced() {
        answering.memory()?;
    } else {
        answering.messages()?;
    }
    while (0..team.qps.len()).any(|lane| answering.stream.under_way(lane) > 0) {
        answering.stream.over(&look.next(&team.sent)?)?;
    }
    Ok((None, Numbers::new()))
}

struct Answering<'a> {
    team: &'a Team,
    plan: &'a Plan,
    look: Look<'a>,
    size: usize,
    stream: Stream<'a>,
    pattern: Pattern,
    /// The number of queue pairs whose last message has arrived.
    last: usize,
    came: Numbers,
}

impl Answering<'_> {
    fn is_over(&self) -> bool {
        self.last == self.team.qps.len()
    }

    /// Receives messages until all queue pairs are over.
    fn messages(&mut self) -> Result<()> {
        while !self.is_over() {
            let came = self.look.next(&self.team.received)?;
            if Team::is_last(&came) {
                self.last += 1;
                self.team.repost(&came)?;
                continue;
            }
            let lane = Team::lane(&came);
            if self.plan.verify {
                self.check(&came, lane)?;
            }
            self.came[lane] += 1;
            self.team.repost(&came)?;
            if self.plan.is_answered() {
                self.answer(lane)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, came: &softhca::Completion, lane: usize) -> Result<()> {
        let (team, size, number) = (self.team, self.size, self.came[lane]);
        if self.plan.operation != Operation::Send {
            return in_window(team, &mut self.pattern, size, lane, number, self.look);
        }
        if came.bytes() != size {
            return Err(Error::Contents(format!("message {number} has {} bytes and should have {size}", came.bytes())));
        }
        self.pattern.check(size, lane, number, |into| team.received(came, into))
    }

    fn answer(&mut self, lane: usize) -> Result<()> {
        while self.stream.under_way(lane) >= u64::from(self.plan.depth()) {
            self.stream.over(&self.look.next(&self.team.sent)?)?;
        }
        self.stream.post(lane, 1)?;
        if let Some(sent) = self.look.glance(&self.team.sent)? {
            self.stream.over(&sent)?;
        }
        Ok(())
    }

    /// Polls the memory that the other side writes, one queue pair after the other.
    fn memory(&mut self) -> Result<()> {
        let (mut vain, mut looks, mut lane) = (Vain::default(), 0_u32, 0);
        while !self.is_over() {
            let number = self.stream.posted[lane];
            if self.team.mark(&self.team.range(lane, number, self.size)) == mark(number) {
                if self.plan.verify {
                    in_window(self.team, &mut self.pattern, self.size, lane, number, self.look)?;
                }
                self.answer(lane)?;
                lane = (lane + 1) % self.team.qps.len();
                vain = Vain::default();
                continue;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                if let Some(came) = self.look.glance(&self.team.received)? {
                    self.last += usize::from(Team::is_last(&came));
                    self.team.repost(&came)?;
                }
            } else if let Some(sent) = self.look.glance(&self.team.sent)? {
                self.stream.over(&sent)?;
            }
            self.look.again(&mut vain)?;
        }
        Ok(())
    }
}

/// Checks the memory after this many operations on each queue pair.
pub(crate) fn verify(team: &Team, plan: &Plan, size: usize, numbers: &[u64]) -> Result<()> {
    if numbers.len() != team.qps.len() {
        return Err(Error::Language(format!("counts of {} queue pairs, of {}", numbers.len(), team.qps.len())));
    }
    if plan.operation.is_atomic() {
        for (lane, number) in numbers.iter().enumerate() {
            let word = team.window.load(lane * WORD);
            if word != *number {
                return Err(Error::Contents(format!(
                    "after {number} times {} on queue pair {lane} its word is {word}",
                    plan.operation
                )));
            }
        }
    }
    if plan.verify && plan.operation == Operation::Write && !plan.is_answered() {
        let mut pattern = Pattern::default();
        for (lane, count) in numbers.iter().enumerate() {
            for number in count.saturating_sub(team.slots as u64)..*count {
                let start = team.range(lane, number, size).start;
                pattern.check(size, lane, number, |into| team.window.read(start, into))?;
            }
        }
    }
    Ok(())
}
