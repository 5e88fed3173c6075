//! `softhca show --errors`: why something failed, program by program, as the agent has it from their engines.
//!
//! What programs said of themselves the agent has cleaned; here it becomes lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::admin::Connection;
use crate::place::Host;
use crate::{Failure, table};

/// What the agent itself has dropped: the member, and what it means.
const WIRE: [(&str, &str); 5] = [
    ("no_engine", "no program here has the QP that they were for"),
    ("ring_full", "the program that they were for had no room left; it does not poll often enough"),
    ("own_source", "they came from outside with an address of this agent"),
    ("malformed", "they cannot be packets"),
    ("management", "they were for QP 0 or QP 1, and are no messages of the connection manager"),
];

/// Shows why something failed in the programs that run or ended lately.
pub(crate) fn run(host: &Host, json: bool) -> Result<String, Failure> {
    let answer = Connection::expect(&host.run_dir())?.ask("errors")?;
    if json {
        return Ok(serde_json::to_string_pretty(&answer)? + "\n");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(text(&answer, now))
}

fn text(answer: &Value, now: Duration) -> String {
    let mut text = String::new();
    for program in list(&answer["programs"]) {
        let word = |member: &str| program[member].as_str().unwrap_or_default();
        let ended = if program["ended"] == true { ", ended" } else { "" };
        text += &format!("{} {} on {}{ended}\n", program["pid"], word("comm"), word("device"));
        if let Some(concealed) = program["concealed"].as_u64() {
            text += &format!("  {concealed} reasons of another user, which are shown to that user and to root\n");
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
            let last = answer["last_drops"][member].as_str().map(|last| format!(" (the last: {last})"));
            let last = last.unwrap_or_default();
            text += &format!("the agent has dropped {count} packets of other hosts: {meaning}{last}\n");
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
}
