//! Posts operations on a queue pair, one by one or many with one call. The code is the same for
//! every operation. The principal type is [`Stream`].

use softhca::Message;

use crate::contents::{Pattern, mark};
use crate::error::{Error, Result};
use crate::plan::{Operation, Plan};
use crate::team::{Team, WORD};

/// The number of operations on each queue pair.
pub(crate) type Numbers = Vec<u64>;

/// The operations of one thread's share, for one size.
pub(crate) struct Stream<'a> {
    team: &'a Team,
    plan: &'a Plan,
    size: usize,
    inline: bool,
    /// The number of posted operations on each queue pair.
    pub(crate) posted: Numbers,
    /// The number of completed operations on each queue pair.
    pub(crate) over: Numbers,
    pattern: Pattern,
    bytes: Vec<u8>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(team: &'a Team, plan: &'a Plan, size: usize) -> Self {
        let copies = matches!(plan.operation, Operation::Send | Operation::Write);
        Self {
            team,
            plan,
            size,
            // In a checked batch each message has different contents, so a batch cannot use one
            // inline buffer.
            inline: copies
                && size <= plan.inline as usize
                && !plan.is_announced()
                && !(plan.verify && plan.batch() > 1),
            posted: vec![0; team.qps.len()],
            over: vec![0; team.qps.len()],
            pattern: Pattern::default(),
            bytes: vec![0; size],
        }
    }

    /// The number of outstanding operations on a queue pair.
    pub(crate) fn under_way(&self, lane: usize) -> u64 {
        self.posted[lane] - self.over[lane]
    }

    /// Posts `count` operations on a queue pair. The id of their completion contains the queue pair
    /// and the count.
    pub(crate) fn post(&mut self, lane: usize, count: u32) -> Result<()> {
        let first = self.posted[lane];
        let name = u64::from(count) << 32 | lane as u64;
        self.stage(lane, first, count);
        let (team, size, qp) = (self.team, self.size, &self.team.qps[lane]);
        let local = |number: u64| team.source.part(team.range(lane, number, size));
        let remote = |number: u64| team.target.part(team.range(lane, number, size));
        let word = || team.target.part(team.word(lane));
        let result = || team.source.part(team.word(lane));
        if count == 1 {
            match self.plan.operation {
                Operation::Send if self.inline => qp.send_inline(name, &self.bytes, None)?,
                Operation::Send => qp.send(name, local(first))?,
                Operation::Write if self.inline => qp.write_inline(name, &self.bytes, &remote(first)?)?,
                Operation::Write if self.plan.is_announced() => {
                    qp.write(name, Message::from(local(first)).immediate(0), &remote(first)?)?;
                }
                Operation::Write => qp.write(name, local(first), &remote(first)?)?,
                Operation::Read => qp.read(name, local(first), &remote(first)?)?,
                Operation::FetchAdd => qp.fetch_add(name, result(), &word()?, 1)?,
                Operation::CmpSwap => qp.compare_swap(name, result(), &word()?, first, first + 1)?,
            }
        } else {
            let mut batch = qp.batch();
            for number in first..first + u64::from(count) {
                batch = match self.plan.operation {
                    Operation::Send if self.inline => batch.send_inline(&self.bytes, None),
                    Operation::Send => batch.send(local(number)),
                    Operation::Write if self.inline => batch.write_inline(&self.bytes, &remote(number)?),
                    Operation::Write => batch.write(local(number), &remote(number)?),
                    Operation::Read => batch.read(local(number), &remote(number)?),
                    Operation::FetchAdd => batch.fetch_add(result(), &word()?, 1),
                    Operation::CmpSwap => batch.compare_swap(result(), &word()?, number, number + 1),
                };
            }
            batch.post(name)?;
        }
        self.posted[lane] += u64::from(count);
        Ok(())
    }

    /// Writes the message contents to the memory.
    fn stage(&mut self, lane: usize, first: u64, count: u32) {
        match self.plan.operation {
            Operation::Send | Operation::Write if self.plan.verify && self.inline => {
                let made = self.pattern.make(self.size, lane, first);
                self.bytes.copy_from_slice(made);
            }
            Operation::Send | Operation::Write if self.plan.verify => {
                for number in first..first + u64::from(count) {
                    let made = self.pattern.make(self.size, lane, number);
                    self.team.source.write(self.team.range(lane, number, self.size).start, made);
                }
            }
            Operation::Read if self.plan.verify => {
                for number in first..first + u64::from(count) {
                    self.team.source.write(self.team.range(lane, number, self.size).end - 1, &[0]);
                }
            }
            Operation::Write if self.plan.is_answered() => self.set_mark(lane, first),
            _ => {}
        }
    }

    /// Sets the mark, by which a side that polls memory sees the message.
    fn set_mark(&mut self, lane: usize, number: u64) {
        let mark = mark(number);
        match self.inline {
            true => self.bytes[self.size - 1] = mark,
            false => {
                let range = self.team.range(lane, number, self.size);
                self.team.source.write(range.end - 1, &[mark]);
            }
        }
    }

    /// Counts the operations of a completion, and checks the data of READs. Returns the number of
    /// operations.
    pub(crate) fn over(&mut self, completion: &softhca::Completion) -> Result<u64> {
        let (lane, count) = ((completion.id() & 0xffff_ffff) as usize, completion.id() >> 32);
        if count == 0 {
            return Ok(0);
        }
        let first = self.over[lane];
        self.over[lane] += count;
        if self.plan.verify {
            self.check(lane, first, count)?;
        }
        Ok(count)
    }

    fn check(&mut self, lane: usize, first: u64, count: u64) -> Result<()> {
        let team = self.team;
        match self.plan.operation {
            Operation::Read => {
                for number in first..first + count {
                    let range = team.range(lane, number, self.size);
                    let slot = number % team.slots as u64;
                    self.pattern.check(self.size, lane, slot, |into| team.source.read(range.start, into))?;
                }
                Ok(())
            }
            // Later operations may already have written their results to the same word.
            Operation::FetchAdd | Operation::CmpSwap if self.under_way(lane) == 0 => {
                let (before, expected) = (team.source.load(lane * WORD), first + count - 1);
                if before == expected {
                    return Ok(());
                }
                Err(Error::Contents(format!(
                    "{} number {expected} of queue pair {lane} has found {before} and not {expected}",
                    self.plan.operation
                )))
            }
            _ => Ok(()),
        }
    }
}
