//! `softhca show --errors`: shows why something failed, for each program.
//!
//! The agent has the reasons of its programs from their engines. Files have the reasons of an
//! earlier agent's programs.
//!
//! The agent has cleaned the sentences that programs wrote. This module formats them as lines. The
//! principal function is [`run`].

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::reason::{Line, ReasonKind};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::place::{self, Host};
use crate::{reasons, start, table};

/// The most bytes of a sentence that are shown.
const LONGEST: usize = 2000;

/// Packets that the agent itself dropped: the member of the answer, and its meaning.
const WIRE: [(&str, &str); 5] = [
    ("no_engine", "no program here has their destination QP"),
    ("ring_full", "the receive ring of the destination program was full; the program does not poll often enough"),
    ("own_source", "their source address belongs to this agent"),
    ("malformed", "they are malformed"),
    ("management", "their destination is QP 0 or QP 1, but they are not connection manager messages"),
];

/// Shows the failures of programs that run or have ended recently.
pub(crate) fn run(host: &Host, json: bool) -> Result<String, Failure> {
    let run_dir = host.run_dir();
    let folder = place::reasons_folder(&run_dir);
    let (answer, heading) = match start::answering(&run_dir)? {
        Some(connection) => {
            // The folder is missing if no program ran under `softhca run`.
            let stored = of_files(&folder).unwrap_or_default();
            (with_stored(connection.ask("errors")?, stored), String::new())
        }
        None => {
            let stored = of_files(&folder).map_err(|error| no_agent(&folder, &error))?;
            let found = if stored.is_empty() {
                format!("no agent is running, and no reasons are stored in {}\n", folder.display())
            } else {
                format!("no agent is running; these reasons are from files in {}:\n", folder.display())
            };
            (json!({ "programs": stored, "source": folder }), found)
        }
    };
    if json {
        return Ok(crate::json::object(answer)?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = text(&answer, now);
    Ok(match (heading.is_empty(), text.is_empty()) {
        (true, true) => "nothing has failed\n".to_owned(),
        _ => heading + &text,
    })
}

fn no_agent(folder: &Path, error: &io::Error) -> String {
    format!(
        "no agent is running, and there are no saved reasons: {}: {error}; start a program with `softhca run -- PROGRAM`",
        folder.display()
    )
}

/// Adds to the agent's answer the processes of files that the agent does not know, for example
/// those of an earlier agent.
fn with_stored(mut answer: Value, mut stored: Vec<Value>) -> Value {
    let known: Vec<Value> = list(&answer["programs"]).iter().map(|program| program["pid"].clone()).collect();
    stored.retain(|program| !known.contains(&program["pid"]));
    stored.extend(answer["programs"].as_array().cloned().unwrap_or_default());
    answer["programs"] = stored.into();
    answer
}

/// The processes in the files of `softhca run`, in the form of the agent's answer. The file that
/// was written last comes last.
fn of_files(folder: &Path) -> io::Result<Vec<Value>> {
    let entries = fs::read_dir(folder)?.flatten();
    let mut files: Vec<_> =
        entries.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    files.sort();
    let mut programs = Vec::new();
    for (written, file) in files {
        let time = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        programs.extend(of_file(&file, &reasons::last(&file).unwrap_or_default(), time));
    }
    Ok(programs)
}

/// A sentence of one kind, and how often it came.
type Row = (ReasonKind, String, u64);

/// The processes of one run. A sentence that was written several times is one row. The time is that
/// of the file's last write, because the file has no times.
fn of_file(file: &Path, text: &str, time: u64) -> Vec<Value> {
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
    let row = |(kind, sentence, count): &(ReasonKind, String, u64)| json!({ "time": time, "count": count, "kind": kind.word(), "sentence": sentence });
    let told = |(pid, rows): &(u32, Vec<_>)| {
        let errors: Vec<Value> = rows.iter().map(row).collect();
        json!({ "pid": pid, "ended": is_gone(*pid), "errors": errors, "drops": [], "source": file })
    };
    processes.iter().map(told).collect()
}

/// Whether a process has ended, as far as /proc shows.
fn is_gone(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

/// The answer as text; empty if nothing has failed.
fn text(answer: &Value, now: Duration) -> String {
    let mut text = String::new();
    for program in list(&answer["programs"]) {
        let word = |member: &str| program[member].as_str().unwrap_or_default();
        let ended = if program["ended"] == true { ", ended" } else { "" };
        let what = format!("{} {} on {}", program["pid"], word("comm"), word("device"));
        let what = if program["device"].is_string() { what } else { format!("process {}", program["pid"]) };
        // Without an agent, the heading names the folder.
        let file = program["source"].as_str().filter(|_| !answer["source"].is_string());
        let file = file.map_or_else(String::new, |file| format!(", from {file}"));
        text += &format!("{what}{ended}{file}\n");
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
    text
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
        assert_eq!(text(&json!({"programs": []}), Duration::ZERO), "");
    }

    /// A folder with files of reasons: one of an exited process, and one of this process. No
    /// process has the id 2^22 or more.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = format!(
            "opened 5000007: a device\nfailed 5000007: bad\nfailed 5000007: bad\nrefused {}: no\n",
            std::process::id()
        );
        std::fs::write(folder.path().join("5"), lines).expect("written");
        folder
    }

    #[test]
    fn the_files_of_programs_are_told_as_the_agent_tells_them() {
        let folder = folder();
        let programs = super::of_files(folder.path()).expect("read");
        let told = |program: &serde_json::Value| (program["pid"].clone(), program["ended"].clone());
        assert_eq!(told(&programs[0]), (json!(5_000_007), json!(true)));
        assert_eq!(told(&programs[1]), (json!(std::process::id()), json!(false)));
        assert_eq!((programs.len(), &programs[0]["errors"][0]["count"]), (2, &json!(2)));
        let told = text(&json!({ "programs": programs, "source": folder.path() }), Duration::ZERO);
        let here = format!("process {}\n", std::process::id());
        for expected in ["process 5000007, ended\n", "2      failed   bad", &here, "refused  no"] {
            let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
            let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(told.contains(&expected), "{expected} is not in {told}");
        }
        let missing = folder.path().join("none");
        let none = super::no_agent(&missing, &super::of_files(&missing).expect_err("nothing there"));
        assert!(none.contains("no agent is running") && none.contains("softhca run"), "{none}");
    }

    #[test]
    fn programs_of_files_come_before_those_that_the_agent_knows() {
        let folder = folder();
        let agents =
            json!({"programs": [{"pid": std::process::id(), "comm": "x", "device": "softhca0", "errors": []}]});
        let answer = super::with_stored(agents, super::of_files(folder.path()).expect("read"));
        let told = text(&answer, Duration::ZERO);
        let file = folder.path().join("5").display().to_string();
        assert!(told.starts_with(&format!("process 5000007, ended, from {file}\n")), "{told}");
        assert!(told.contains(" x on softhca0") && !told.contains("refused"), "{told}");
    }
}
