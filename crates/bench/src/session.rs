//! A measurement from its first to its last message, for both sides: which objects exist, in which
//! order they are made, and which side waits for which.
//!
//! The asking side sends the plan. Both sides make their queue pairs and exchange the endpoints.
//! For each size, both sides prepare. Then the answering side's threads begin, then the asking
//! side's threads. When the threads have finished the size, both sides say so. The principal
//! functions are [`ask`] and [`answer`].

use std::time::Duration;

use softhca::{Context, Endpoint};

use crate::error::{Error, Result};
use crate::figures::{Case, Tally};
use crate::look::Look;
use crate::place::Place;
use crate::plan::Plan;
use crate::stream::Numbers;
use crate::talk::{Talk, Watch, Word};
use crate::team::{Draft, Team};
use crate::{answering, asking};

/// How long nothing may complete.
const PATIENCE: Duration = Duration::from_secs(15);

/// Measures a plan. Calls `told` when a size is done.
///
/// # Errors
/// Any error that ends the measurement, on either side.
pub fn ask(
    context: &Context,
    place: &Place,
    mut talk: Talk,
    plan: &Plan,
    mut told: impl FnMut(usize, &Case),
) -> Result<Vec<Case>> {
    plan.check()?;
    let done = (|| {
        talk.say(&Word::plan(plan))?;
        let teams = meet(context, place, &mut talk, plan)?;
        talk.hear_ready()?;
        let mut cases = Vec::new();
        for (number, &size) in plan.sizes.iter().enumerate() {
            teams.iter().for_each(Team::clear);
            talk.say(&Word::Begin(number))?;
            talk.hear_ready()?;
            let (tallies, numbers) = run(&talk, plan, &teams, true, |team, look| asking::run(team, look, plan, size))?;
            talk.say(&Word::Done(numbers))?;
            match talk.hear()? {
                Word::Done(_) => {}
                other => return Err(Error::Language(format!("{other:?} at the end of a size"))),
            }
            let case = Case::of(size, tallies, plan.is_answered());
            told(number, &case);
            cases.push(case);
        }
        talk.say(&Word::Bye)?;
        Ok(cases)
    })();
    farewell(&mut talk, done)
}

/// Answers one plan until the other side says that it is complete. Returns the plan.
///
/// # Errors
/// Any error that ends the measurement, on either side.
pub fn answer(context: &Context, place: &Place, mut talk: Talk) -> Result<Plan> {
    let done = (|| {
        let plan = talk.hear()?.into_plan()?;
        let teams = meet(context, place, &mut talk, &plan)?;
        talk.say(&Word::Ready)?;
        loop {
            let size = match talk.hear()? {
                Word::Begin(number) => *plan.sizes.get(number).ok_or_else(|| {
                    Error::Language(format!("there are {} sizes, and none with number {number}", plan.sizes.len()))
                })?,
                Word::Bye => return Ok(plan),
                other => return Err(Error::Language(format!("{other:?} where a size begins"))),
            };
            teams.iter().for_each(|team| answering::prepare(team, &plan, size));
            // All receive requests are posted before the other side begins, so a faster side loses
            // nothing.
            talk.say(&Word::Ready)?;
            run(&talk, &plan, &teams, false, |team, look| answering::run(team, look, &plan, size))?;
            let Word::Done(numbers) = talk.hear()? else {
                return Err(Error::Language("no end of a size".to_owned()));
            };
            let mut numbers = numbers.into_iter();
            for team in &teams {
                let own: Vec<u64> = numbers.by_ref().take(team.qps.len()).collect();
                answering::verify(team, &plan, size, &own)?;
            }
            talk.say(&Word::Done(Vec::new()))?;
        }
    })();
    farewell(&mut talk, done)
}

/// Tells an error to the other side, unless the error came from there.
fn farewell<T>(talk: &mut Talk, done: Result<T>) -> Result<T> {
    // If the other side gave up, a request that fails because of that is not the reason.
    let done = match done {
        Err(Error::Verbs(error)) => match heard(talk) {
            Some(why) => Err(why),
            None => Err(Error::Verbs(error)),
        },
        done => done,
    };
    if let Err(why) = &done
        && !matches!(why, Error::Other(_) | Error::Gone)
    {
        let _ = talk.say(&Word::Failed(why.to_string()));
    }
    done
}

/// The other side's reason, if the other side ends within a moment.
fn heard(talk: &mut Talk) -> Option<Error> {
    talk.end_within(Duration::from_millis(500)).filter(|why| matches!(why, Error::Other(_) | Error::Gone))
}

/// Makes the queue pairs and connects them with those of the other side.
fn meet(context: &Context, place: &Place, talk: &mut Talk, plan: &Plan) -> Result<Vec<Team>> {
    let drafts =
        (0..plan.threads).map(|number| Draft::new(context, place, plan, number)).collect::<Result<Vec<_>>>()?;
    talk.say(&Word::Ends {
        ends: drafts.iter().flat_map(Draft::ends).collect(),
        windows: drafts.iter().map(Draft::window).collect(),
    })?;
    let Word::Ends { ends, windows } = talk.hear()? else {
        return Err(Error::Language("no queue pairs".to_owned()));
    };
    let ends = ends.iter().map(|end| end.parse()).collect::<softhca::Result<Vec<Endpoint>>>()?;
    let mut ends = ends.into_iter();
    let mut windows = windows.iter();
    drafts
        .into_iter()
        .map(|draft| {
            let window = windows.next().ok_or_else(|| Error::Language("it has fewer threads".to_owned()))?;
            draft.connect(&mut ends, window)
        })
        .collect()
}

/// Runs one thread for each share, and waits for all threads.
fn run(
    talk: &Talk,
    plan: &Plan,
    teams: &[Team],
    asks: bool,
    work: impl Fn(&Team, Look<'_>) -> Result<(Option<Tally>, Numbers)> + Sync,
) -> Result<(Vec<Tally>, Numbers)> {
    let watch: &Watch = &talk.watch;
    let look = Look { watch, event: plan.event, patience: asks.then_some(PATIENCE) };
    let done: Vec<Result<(Option<Tally>, Numbers)>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = teams
            .iter()
            .enumerate()
            .map(|(number, team)| {
                scope.spawn(move || {
                    if plan.pin {
                        pin(2 * number + usize::from(asks));
                    }
                    let done = work(team, look);
                    if done.is_err() {
                        // The other threads stop waiting.
                        watch.halt();
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Gone))).collect()
    });
    let (mut tallies, mut all) = (Vec::new(), Vec::new());
    let mut failed = None;
    for done in done {
        match done {
            Ok((tally, numbers)) => {
                tallies.extend(tally);
                all.extend(numbers);
            }
            // A thread's own error says more than the message that it was stopped.
            Err(Error::Gone) => drop(failed.get_or_insert(Error::Gone)),
            Err(why) if matches!(failed, None | Some(Error::Gone)) => failed = Some(why),
            Err(_) => {}
        }
    }
    failed.map_or(Ok((tallies, all)), Err)
}

/// Pins this thread to a processor. If this is not allowed, the thread runs unpinned.
fn pin(number: usize) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = rustix::thread::CpuSet::new();
    set.set(number % processors);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
