//! How often fault rules acted in one program run. `softhca run` prints it once at the end, with
//! the numbers of `softhca fault list`.
//!
//! The agent counts, also for programs that were killed. If the agent has gone, the reasons of the
//! run's processes give a lower bound: an engine writes a reason at the first, tenth, hundredth …
//! fault ([`step`]). The principal type is [`FaultCounts`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use abi::fault::{FaultKind, Rule, Sort, text};
use engine::reason::{Line, clean};
use serde_json::{Value, json};

use crate::admin::Connection;

/// The agent has this long to answer after the program. A stopped agent must not keep `softhca run`
/// for long.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many rules get a line of their own.
const TOLD: usize = 8;

/// The most bytes of a rule that are printed.
const LONGEST: usize = 500;

/// The start of a reason about packets on which a rule acted.
const STEP: &str = "fault: by rule ";

/// What the rules had done before the program started.
#[derive(Debug)]
pub(crate) struct FaultCounts<'a> {
    agent: &'a Connection,
    /// How often each rule had acted.
    before: BTreeMap<u64, u64>,
}

/// A rule that acted during the run.
#[derive(Debug)]
struct Count {
    id: u64,
    rule: String,
    acted: u64,
    /// How often it had acted before the run.
    before: u64,
    exact: bool,
}

impl<'a> FaultCounts<'a> {
    /// Asks the agent what its rules have done so far.
    pub(crate) fn new(agent: &'a Connection) -> Self {
        let answer = list(agent).unwrap_or_default();
        let count = |row: &Value| Some((row["id"].as_u64()?, row["acted"].as_u64()?));
        Self { agent, before: rows(&answer, "rules").filter_map(count).collect() }
    }

    /// What to print at the end of the run, with a line for each rule that acted. `reasons` are the
    /// run's reasons.
    pub(crate) fn told(&self, reasons: &str) -> String {
        let has_opened = reasons.lines().any(|line| Line::read(line).1 == Line::Opened);
        let answer = if has_opened { list(self.agent) } else { None };
        told(&self.counts(&answer.unwrap_or_default(), reasons))
    }

    /// The rules that acted, from the agent's answer. Rules that the answer lacks are counted from
    /// the reasons of the run.
    fn counts(&self, answer: &Value, reasons: &str) -> Vec<Count> {
        let lines = || reasons.lines().map(Line::read);
        let processes: BTreeSet<u64> =
            lines().filter(|(_, line)| *line == Line::Opened).map(|(pid, _)| pid.into()).collect();
        let mut counts: BTreeMap<u64, Count> = BTreeMap::new();
        // Rules of the programs themselves: the first number of each. Each open of a device adds
        // them again, with new numbers.
        let mut own: BTreeMap<String, u64> = BTreeMap::new();
        for row in rows(answer, "rules").chain(rows(answer, "ended")) {
            let (Some(id), Some(acted)) = (row["id"].as_u64(), row["acted"].as_u64()) else { continue };
            let before = self.before.get(&id).copied();
            let is_of_run = match row["pid"].as_u64() {
                Some(pid) => before.is_none() && processes.contains(&pid),
                None => !processes.is_empty(),
            };
            let before = before.unwrap_or(0);
            if is_of_run && acted > before {
                let rule = row["rule"].as_str().unwrap_or_default().to_owned();
                let mut count = Count { id, rule, acted, before, exact: true };
                if row["pid"].is_u64() {
                    let earlier = own.get(&count.rule).and_then(|id| counts.remove(id));
                    if let Some(earlier) = earlier {
                        count.acted = count.acted.saturating_add(earlier.acted);
                        count.id = count.id.min(earlier.id);
                    }
                    own.insert(count.rule.clone(), count.id);
                }
                counts.insert(count.id, count);
            }
        }
        let mut steps: BTreeMap<u64, (&str, BTreeMap<u32, u64>)> = BTreeMap::new();
        for (pid, line) in lines() {
            let Line::Reason(_, sentence) = line else { continue };
            let Some((id, rule, acted)) = step(sentence) else { continue };
            let most = steps.entry(id).or_insert((rule, BTreeMap::new())).1.entry(pid).or_default();
            *most = acted.max(*most);
        }
        for (id, (rule, by_process)) in steps.into_iter().filter(|(_, (rule, _))| !own.contains_key(*rule)) {
            let acted = by_process.values().fold(0, |sum: u64, most| sum.saturating_add(*most));
            counts.entry(id).or_insert(Count { id, rule: rule.to_owned(), acted, before: 0, exact: false });
        }
        counts.into_values().collect()
    }
}

/// Whether a reason is a count of packets on which a rule acted. The count at the end replaces it.
pub(crate) fn is_step(sentence: &str) -> bool {
    step(sentence).is_some()
}

/// Parses such a reason: the rule's number, the rule as text, and how often it had acted.
fn step(sentence: &str) -> Option<(u64, &str, u64)> {
    let (id, rest) = sentence.strip_prefix(STEP)?.split_once(" (")?;
    let (rule, rest) = rest.split_once(") ")?;
    let (acted, _) = rest.split_once(" packet")?;
    Some((id.parse().ok()?, rule, acted.parse().ok()?))
}

fn list(agent: &Connection) -> Option<Value> {
    agent.ask_within(&json!({"request": "fault", "do": "list"}), PATIENCE).ok()
}

fn rows<'a>(answer: &'a Value, member: &str) -> impl Iterator<Item = &'a Value> {
    answer[member].as_array().into_iter().flatten()
}

fn told(counts: &[Count]) -> String {
    let mut told: String = counts.iter().take(TOLD).map(Count::line).collect();
    if let Some(more) = counts.get(TOLD..).filter(|more| !more.is_empty()) {
        let acted = more.iter().fold(0, |sum: u64, count| sum.saturating_add(count.acted));
        let rules = if more.len() == 1 { "rule" } else { "rules" };
        told += &format!("softhca: {} more fault {rules} acted {acted} times; see `softhca fault list`\n", more.len());
    }
    told
}

impl Count {
    fn line(&self) -> String {
        let least = if self.exact { "" } else { "at least " };
        let earlier = match self.before {
            0 => String::new(),
            before => format!(", {} of them during this run", self.acted - before),
        };
        let what = match text::parse(&self.rule) {
            Ok(rule) => what(&rule, self.acted, least),
            // The agent has another version.
            Err(_) => format!("it acted {least}{}", times(self.acted)),
        };
        let rule = clean(&self.rule, LONGEST);
        format!("softhca: fault rule {} ({rule}): {what}{earlier}\n", self.id)
    }
}

/// What a rule has done, and how often.
fn what(rule: &Rule, acted: u64, least: &str) -> String {
    let many = |thing: &str| {
        let (plural, were) = if acted == 1 { ("", "was") } else { ("s", "were") };
        format!("{least}{acted} {thing}{plural} {were}")
    };
    match &rule.kind {
        FaultKind::Fail { command, errno } => format!("{command} failed with {errno} {least}{}", times(acted)),
        FaultKind::CmReject { .. } => format!("{} rejected", many("connection request")),
        FaultKind::CmTimeout => format!("{} lost", many("connection request")),
        FaultKind::PortDown { .. } => format!("the port was taken down {least}{}", times(acted)),
        FaultKind::Remove => format!("{} removed", many("open device")),
        kind if rule.select.opcode == Some(Sort::Cm) => {
            format!("{} {}", many("connection manager datagram"), kind.done())
        }
        kind => format!("{} {}", many("packet"), kind.done()),
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "opened 7: a device\nopened 8: a device\n";

    /// The lines for a run with `reasons`, if the agent answers `answer` after the run. Rule 1 had
    /// acted 100 times before.
    fn said(answer: &Value, reasons: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let node = engine::rundir::admin(folder.path());
        std::fs::create_dir_all(node.parent().expect("a folder")).expect("made");
        let _listener = shm::socket::Listener::listen(&node).expect("a node");
        let agent = Connection::open(folder.path()).expect("connected");
        let counts = FaultCounts { agent: &agent, before: [(1, 100)].into() };
        told(&counts.counts(answer, reasons))
    }

    #[test]
    fn each_rule_that_acted_is_told_once() {
        let answer = json!({
            "rules": [
                {"id": 1, "rule": "loss 5% seed 7", "pid": null, "seen": 45454, "acted": 2294},
                {"id": 2, "rule": "rnr 1%", "pid": null, "seen": 9, "acted": 0},
                {"id": 3, "rule": "loss", "pid": 9, "seen": 9, "acted": 9},
                {"id": 4, "rule": "fail create_qp ENOMEM", "pid": 7, "seen": 1, "acted": 1},
            ],
            "ended": [
                {"id": 5, "rule": "cm-reject 28", "pid": 8, "seen": 2, "acted": 2},
                {"id": 6, "rule": "loss", "pid": 10, "seen": 2, "acted": 2},
            ],
        });
        let expected = "\
            softhca: fault rule 1 (loss 5% seed 7): 2294 packets were lost, 2194 of them during this run\n\
            softhca: fault rule 4 (fail create_qp ENOMEM): create_qp failed with ENOMEM (out of memory or of room in a queue) once\n\
            softhca: fault rule 5 (cm-reject 28): 2 connection requests were rejected\n";
        assert_eq!(said(&answer, AGENT), expected);
        assert_eq!(said(&answer, ""), "", "a program that opened no device");
    }

    #[test]
    fn rules_of_all_opens_of_a_device_are_one_line() {
        let loss = |id: u64, pid: u32| json!({"id": id, "rule": "loss", "pid": pid, "seen": 9, "acted": 2});
        let answer = json!({"rules": [loss(9, 7), {"id": 1, "rule": "loss", "pid": null, "seen": 200, "acted": 150}],
            "ended": [loss(4, 7), loss(6, 8)]});
        let reasons = format!("{AGENT}noted 7: fault: by rule 5 (loss) 1 packet was lost; the last: x of QP 0x1\n");
        let expected = "\
            softhca: fault rule 1 (loss): 150 packets were lost, 50 of them during this run\n\
            softhca: fault rule 4 (loss): 6 packets were lost\n";
        assert_eq!(said(&answer, &reasons), expected);
    }

    #[test]
    fn without_an_agent_the_processes_counts_are_the_least() {
        let reasons = format!(
            "{AGENT}noted 7: fault: by rule 2 (loss 5%) 1 packet was lost; the last: x of QP 0x1\n\
             noted 7: fault: by rule 2 (loss 5%) 10 packets were lost; the last: x of QP 0x1\n\
             noted 8: fault: by rule 2 (loss 5%) 100 packets were lost; the last: x of QP 0x1\n"
        );
        assert_eq!(said(&Value::Null, &reasons), "softhca: fault rule 2 (loss 5%): at least 110 packets were lost\n");
    }

    #[test]
    fn many_rules_are_told_in_few_lines() {
        let rules: Vec<Value> = (2..14)
            .map(|id| json!({"id": id, "rule": format!("loss seed {id}"), "pid": 7, "seen": 3, "acted": 2}))
            .collect();
        let said = said(&json!({ "ended": rules }), AGENT);
        assert_eq!(said.lines().count(), TOLD + 1, "{said}");
        assert!(said.ends_with("4 more fault rules acted 8 times; see `softhca fault list`\n"), "{said}");
    }

    #[test]
    fn every_kind_is_told_in_words_of_its_own() {
        for (rule, expected) in [
            ("loss", "3 packets were lost"),
            ("loss opcode cm", "3 connection manager datagrams were lost"),
            ("delay 1ms", "3 packets were delayed"),
            ("rnr", "3 packets were answered with RNR NAK"),
            ("cm-timeout", "3 connection requests were lost"),
            ("port-down for 1s", "the port was taken down 3 times"),
            ("remove", "3 open devices were removed"),
        ] {
            let rule = text::parse(rule).expect("a rule");
            assert_eq!(what(&rule, 3, ""), expected);
        }
    }
}
