//! A thread of the asking side: it posts one operation after the other, or as many as may be
//! outstanding, and measures the time. The principal function is [`run`].

use std::time::{Duration, Instant};

use crate::contents::{Pattern, mark};
use crate::error::{Error, Result};
use crate::figures::Tally;
use crate::look::{Look, Vain};
use crate::plan::{Amount, Measure, Operation, Plan};
use crate::stream::{Numbers, Stream};
use crate::team::Team;
use crate::window::in_window;

/// Completions between two reads of the clock.
const CLOCK: u64 = 8;

/// Measures one size.
pub(crate) fn run(team: &Team, look: Look<'_>, plan: &Plan, size: usize) -> Result<(Option<Tally>, Numbers)> {
    let mut stream = Stream::new(team, plan, size);
    let tally = match plan.measure {
        Measure::Lat => one_by_one(&mut stream, team, look, plan, size)?,
        Measure::Bw | Measure::Rate => many(&mut stream, team, look, plan, size)?,
    };
    while (0..team.qps.len()).any(|lane| stream.under_way(lane) > 0) {
        stream.over(&look.next(&team.sent)?)?;
    }
    team.finish(0)?;
    for _ in &team.qps {
        look.next(&team.sent)?;
    }
    Ok((Some(tally), stream.posted))
}

/// When a thread has measured enough.
struct End {
    count: u64,
    time: Option<Duration>,
}

impl End {
    fn of(plan: &Plan) -> Self {
        match plan.amount {
            Amount::Iterations(all) => Self { count: all.div_ceil(plan.threads.into()), time: None },
            Amount::Seconds(time) => Self { count: u64::MAX, time: Some(Duration::from_secs_f64(time)) },
        }
    }

    fn is_over(&self, started: Instant, now: Instant) -> bool {
        self.time.is_some_and(|time| now.saturating_duration_since(started) >= time)
    }
}

fn one_by_one(stream: &mut Stream<'_>, team: &Team, look: Look<'_>, plan: &Plan, size: usize) -> Result<Tally> {
    let (end, warmup) = (End::of(plan), plan.warmup(size));
    let mut answers = Answers { team, plan, size, pattern: Pattern::default() };
    let mut tally = Tally::new(true);
    let mut before = Instant::now();
    let mut number = 0;
    tally.started = before;
    loop {
        let lane = (number % team.qps.len() as u64) as usize;
        while stream.under_way(lane) >= u64::from(plan.depth()) {
            stream.over(&look.next(&team.sent)?)?;
        }
        stream.post(lane, 1)?;
        if plan.is_answered() {
            answers.wait(stream, look, lane)?;
        } else {
            stream.over(&look.next(&team.sent)?)?;
        }
        let now = Instant::now();
        number += 1;
        match number.cmp(&warmup) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => tally.started = now,
            std::cmp::Ordering::Greater => {
                tally.record(now - before);
                tally.ended = now;
                if tally.operations >= end.count || end.is_over(tally.started, now) {
                    return Ok(tally);
                }
            }
        }
        before = now;
    }
}

/// Receives the other side's answers.
struct Answers<'a> {
    team: &'a Team,
    plan: &'a Plan,
    size: usize,
    pattern: Pattern,
}

impl Answers<'_> {
    /// Waits for the answer to the last operation on a queue pair.
    fn wait(&mut self, stream: &mut Stream<'_>, look: Look<'_>, lane: usize) -> Result<()> {
        let number = stream.posted[lane] - 1;
        if self.plan.operation == Operation::Write && !self.plan.is_announced() {
            return self.wait_for_mark(stream, look, lane, number);
        }
        let came = look.next(&self.team.received)?;
        if Team::lane(&came) != lane {
            return Err(Error::Contents(format!("an answer on queue pair {} instead of {lane}", Team::lane(&came))));
        }
        if self.plan.verify {
            let (team, size) = (self.team, self.size);
            match self.plan.operation {
                Operation::Send if came.bytes() != size => {
                    return Err(Error::Contents(format!("an answer of {} bytes instead of {size}", came.bytes())));
                }
                Operation::Send => {
                    self.pattern.check(size, lane, number, |into| team.received(&came, into))?;
                }
                _ => in_window(team, &mut self.pattern, size, lane, number, look)?,
            }
        }
        self.team.repost(&came)?;
        if let Some(sent) = look.glance(&self.team.sent)? {
            stream.over(&sent)?;
        }
        Ok(())
    }

    fn wait_for_mark(&mut self, stream: &mut Stream<'_>, look: Look<'_>, lane: usize, number: u64) -> Result<()> {
        let range = self.team.range(lane, number, self.size);
        let mut vain = Vain::default();
        while self.team.mark(&range) != mark(number) {
            match look.glance(&self.team.sent)? {
                Some(sent) => drop(stream.over(&sent)?),
                None => look.again(&mut vain)?,
            }
        }
        if self.plan.verify {
            in_window(self.team, &mut self.pattern, self.size, lane, number, look)?;
        }
        Ok(())
    }
}

fn many(stream: &mut Stream<'_>, team: &Team, look: Look<'_>, plan: &Plan, size: usize) -> Result<Tally> {
    let (end, warmup) = (End::of(plan), plan.warmup(size));
    let (depth, batch) = (u64::from(plan.depth()), u64::from(plan.batch()));
    let mut left = warmup.saturating_add(end.count);
    let fill = |stream: &mut Stream<'_>, lane: usize, left: &mut u64| -> Result<()> {
        while *left > 0 && stream.under_way(lane) + batch.min(*left) <= depth {
            let count = batch.min(*left);
            stream.post(lane, count as u32)?;
            *left -= count;
        }
        Ok(())
    };
    let mut tally = Tally::new(false);
    for lane in 0..team.qps.len() {
        fill(stream, lane, &mut left)?;
    }
    let (mut over, mut before, mut looks) = (0, None, 0_u64);
    while left > 0 || over < stream.posted.iter().sum() {
        let completion = look.next(&team.sent)?;
        over += stream.over(&completion)?;
        if before.is_none() && over >= warmup {
            (before, tally.started) = (Some(over), Instant::now());
        }
        looks += 1;
        if end.time.is_some()
            && before.is_some()
            && looks.is_multiple_of(CLOCK)
            && end.is_over(tally.started, Instant::now())
        {
            left = 0;
        }
        fill(stream, (completion.id() & 0xffff_ffff) as usize, &mut left)?;
    }
    tally.ended = Instant::now();
    tally.operations = over - before.unwrap_or(0);
    Ok(tally)
}
