//! `softhca show --errors`: why something failed, program by program, as the agent has it from their engines;
//! where no agent runs any more, as the programs have written it to their files.
//!
//! What programs said of themselves the agent has cleaned; here it becomes lines.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::reason::{Kind, Line};
use serde_json::{Value, json};

use crate::place::{self, Host};
use crate::{Failure, reasons, start, table};

/// Bytes of a sentence that is shown.
const LONGEST: usize = 2000;

/// What the agent itself has dropped: the member, and what it means.
const WIRE: [(&str, &str); 5] = [
    ("no_engine", "no program here has their destination QP"),
    ("ring_full", "the receive ring of the destination program was full; the program does not poll often enough"),
    ("own_source", "their source address belongs to this agent"),
    ("malformed", "they are malformed"),
    ("management", "their destination is QP 0 or QP 1, but they are not connection manager messages"),
];

/// Shows why something failed in the programs that run or ended lately.
pub(crate) fn run(host: &Host, json: bool) -> Result<String, Failure> {
    let run_dir = host.run_dir();
    let (answer, heading) = match start::answering(&run_dir)? {
        Some(connection) => (connection.ask("errors")?, String::new()),
        None => {
            let folder = place::reasons_folder(&run_dir);
            let heading = format!("no agent is running; these reasons are from files in {}:\n", folder.display());
            (of_files(&folder)?, heading)
        }
    };
    if json {
        return Ok(crate::json::object(answer)?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(heading + &text(&answer, now))
}

/// What programs of `softhca run` have written, in the form in which an agent tells it. The last program comes last.
fn of_files(folder: &Path) -> Result<Value, String> {
    let no_agent = |error: &dyn std::fmt::Display| {
        format!(
            "no agent is running, and there are no saved reasons: {}: {error}; start a program with `softhca run -- \
            PROGRAM`",
            folder.display()
        )
    };
    let entries = fs::read_dir(folder).map_err(|error| no_agent(&error))?;
    let mut files: Vec<_> =
        entries.flatten().filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    files.sort();
    let mut programs = Vec::new();
    for (written, file) in files {
        let time = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        programs.extend(of_file(&reasons::last(&file).unwrap_or_default(), time));
    }
    Ok(json!({ "programs": programs, "source": folder }))
}

/// A sentence of one kind, and how often it came.
type Row = (Kind, String, u64);

/// The processes of one run. A sentence that came several times is one row; when it came is not known, only when the file was written.
fn of_file(text: &str, time: u64) -> Vec<Value> {
    let mut processes: Vec<(u32, Vec<Row>)> = Vec::new();
    for (pid, line) in text.lines().map(Line::read) {
        let Line::Reason(kind, sentence) = line else { continue };
        let at = processes.iter().position(|(known, _)| *known == pid).unwrap_or_else(|| {
            processes.push((pid, Vec::new()));
            processes.len() - 1
        });
        let rows = &mut processes[at].1;
        let sentence = engine::reason::clean(sentence, LONGEST);
        match rows.iter_mut().find(|(known, said, _)| (*known, said) == (kind, &sentence)) {
            Some((.., count)) => *count += 1,
            None => rows.push((kind, sentence, 1)),
        }
    }
    let row = |(kind, sentence, count): &(Kind, String, u64)| json!({ "time": time, "count": count, "kind": kind.word(), "sentence": sentence });
    let told = |(pid, rows): &(u32, Vec<_>)| json!({ "pid": pid, "ended": true, "errors": rows.iter().map(row).collect::<Vec<_>>(), "drops": [] });
    processes.iter().map(told).collect()
}

fn text(answer: &Value, now: Duration) -> String {
    let mut text = String::new();
    for program in list(&answer["programs"]) {
        let word = |member: &str| program[member].as_str().unwrap_or_default();
        let ended = if program["ended"] == true { ", ended" } else { "" };
        let what = format!("{} {} on {}", program["pid"], word("comm"), word("device"));
        let what = if program["device"].is_string() { what } else { format!("process {}", program["pid"]) };
        text += &format!("{what}{ended}\n");
        if let Some(concealed) = program["concealed"].as_u64() {
            text += &format!("  {concealed} reasons of another user; only that user and root can see them\n");
            continue;
        }
        let errors = list(&program["errors"]).iter().map(|error| row(error, error["kind"].as_str(), now));
        let drops = list(&program["drops"]).iter().map(|drop| row(drop, Some("drops"), now));
        for line in table::columns(&["AGO", "TIMES", "WHAT", "WHY"], &errors.chain(drops).collect::<Vec<_>>()).lines() {
            text += &format!("  {line}\n");
        }
    }
    for (member, meaning) in WIRE {
        let count = answer["drops"][member].as_u64().unwrap_or_default();
        if count > 0 {
            let last = answer["last_drops"][member].as_str().map(|last| format!(" (the last one: {last})"));
            let last = last.unwrap_or_default();
            text += &format!("the agent dropped {count} packets from other hosts: {meaning}{last}\n");
        }
    }
    if text.is_empty() { "nothing has failed\n".to_owned() } else { text }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn row(what: &Value, kind: Option<&str>, now: Duration) -> Vec<String> {
    let time = Duration::from_nanos(what["time"].as_u64().unwrap_or_default());
    vec![
        ago(now.saturating_sub(time)),
        what["count"].to_string(),
        kind.unwrap_or_default().to_owned(),
        what["sentence"].as_str().unwrap_or_default().to_owned(),
    ]
}

fn ago(passed: Duration) -> String {
    match passed.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::text;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn each_program_has_its_lines() {
        let answer = json!({
            "programs": [
                {"pid": 7, "comm": "ping", "device": "softhca0", "ended": true,
                 "errors": [{"time": 5_000_000_000_u64, "count": 2, "kind": "failed", "sentence": "QP 0x11, wr_id 0x3: bad"}],
                 "drops": [{"time": 5_000_000_000_u64, "count": 12, "sentence": "QP 0x11: 12 packets were dropped"}]},
                {"pid": 8, "comm": "other", "device": "softhca0", "ended": false, "concealed": 4},
            ],
            "drops": {"no_engine": 3, "ring_full": 0},
            "last_drops": {"no_engine": "16 bytes from 10.0.0.1 to 10.0.0.2, for QP 0x77"},
        });
        let told = text(&answer, Duration::from_secs(9));
        for expected in [
            "7 ping on softhca0, ended\n",
            "4 s",
            "failed  QP 0x11, wr_id 0x3: bad\n",
            "drops",
            "8 other",
            "4 reasons of another",
            "dropped 3 packets",
            "for QP 0x77)",
        ] {
            assert!(told.contains(expected), "{expected} is not in {told}");
        }
        assert!(!told.contains("no room left"));
        assert_eq!(text(&json!({"programs": []}), Duration::ZERO), "nothing has failed\n");
    }

    #[test]
    fn the_files_of_programs_are_told_as_the_agent_tells_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = "opened 7: a device\nfailed 7: QP 0x11: bad\nfailed 7: QP 0x11: bad\nrefused 8: no\n";
        std::fs::write(folder.path().join("5"), lines).expect("written");
        let answer = super::of_files(folder.path()).expect("read");
        let programs = answer["programs"].as_array().expect("programs");
        assert_eq!(
            (programs.len(), &programs[0]["pid"], &programs[0]["errors"][0]["count"]),
            (2, &json!(7), &json!(2))
        );
        let told = text(&answer, Duration::ZERO);
        for expected in ["process 7, ended\n", "2      failed   QP 0x11: bad", "process 8, ended\n", "refused  no"] {
            let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
            let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(told.contains(&expected), "{expected} is not in {told}");
        }
        let none = super::of_files(&folder.path().join("none")).expect_err("nothing there");
        assert!(none.contains("no agent is running") && none.contains("softhca run"), "{none}");
    }
}
