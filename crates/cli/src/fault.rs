//! `softhca fault`: adds, lists and clears fault rules, which lose packets, fail commands and take
//! ports down.
//!
//! The agent keeps the rules and checks them. This module sends rules to the agent and shows them
//! as a table. The principal type is [`Fault`].

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use abi::fault::text::{KEYS, KINDS};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::Connection;
use crate::failure::Failure;
use crate::place::Host;
use crate::{start, table};

/// How long to wait until engines know new rules.
const TAKES: Duration = Duration::from_secs(2);

/// The grammar of a rule, made from the tables with which rules are parsed.
pub(crate) fn grammar() -> String {
    let rows = |table: &[(&str, &str, &str)]| {
        let heads: Vec<String> = table.iter().map(|(word, takes, _)| format!("{word} {takes}")).collect();
        let width = heads.iter().map(String::len).max().unwrap_or(0);
        let lines = heads.iter().zip(table).map(|(head, (.., meaning))| format!("  {head:<width$}  {meaning}\n"));
        lines.collect::<String>()
    };
    format!(
        "A rule has a kind, a value and keys: KIND [VALUE] [KEY VALUE]…\n\nKinds:\n{}\nKeys:\n{}\n\
         SORT is send, write, read, read-response, atomic, atomic-ack, ack, nak,\n\
         request, response, or cm: connection manager messages; only rules with\n\
         `opcode cm` affect them.\n\n{EXAMPLES}",
        rows(&KINDS),
        rows(&KEYS)
    )
}

const EXAMPLES: &str = "\
Examples:
  softhca fault add loss 5%
  softhca fault add loss 5% qp 0x11 seed 7
  softhca fault add loss opcode ack nth 3        The third acknowledgement.
  softhca fault add delay 200us jitter 50us peer 10.0.0.2
  softhca fault add bandwidth 100mbit
  softhca fault add rnr 1%
  softhca fault add fail create_qp ENOMEM nth 2  The second ibv_create_qp fails.
  softhca fault add cm-reject 28                 RDMA_CM_EVENT_REJECTED.
  softhca fault add port-down for 500ms          IBV_EVENT_PORT_ERR, and after
                                                 500 ms IBV_EVENT_PORT_ACTIVE.
  softhca fault add remove                       IBV_EVENT_DEVICE_FATAL.
  softhca fault add --file rules.toml            docs/faults.md has an example.
  softhca fault list
  softhca fault clear 3                          One rule; without 3, all.
  softhca run --fault 'loss 5% seed 7' -- ib_write_bw 127.0.0.1
      For one program only.
  SOFTHCA_FAULTS='loss=5%,seed=7; rnr=1%' softhca run -- ./my-test
      The same by the environment.

While a rule about packets applies to a connection over a lane, that connection
runs with timers and with its path MTU. A program's own rules, and those of
another user, apply to that user's programs only.";

#[derive(Debug, Subcommand)]
pub(crate) enum Fault {
    /// Add rules; their numbers are printed
    #[command(after_help = grammar())]
    Add(AddRules),
    /// Show the rules, and how often each has acted
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Clear rules: those with these numbers, or all
    Clear {
        /// Numbers, as `softhca fault list` shows them
        rules: Vec<u32>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AddRules {
    /// A TOML file with rules
    #[arg(long, value_name = "FILE", conflicts_with = "rule")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A rule; several are separated by semicolons
    #[arg(required_unless_present = "file", trailing_var_arg = true, value_name = "RULE")]
    rule: Vec<String>,
}

/// Carries out one of the commands.
pub(crate) fn run(fault: &Fault, host: &Host) -> Result<String, Failure> {
    match fault {
        Fault::Add(add) => self::add(add, host),
        Fault::List { json } => {
            let answer = Connection::expect(&host.run_dir())?.ask_for(&json!({"request": "fault", "do": "list"}))?;
            if *json {
                return Ok(crate::json::document("rules", answer["rules"].clone())?);
            }
            Ok(listed(&answer))
        }
        Fault::Clear { rules } => {
            let connection = Connection::expect(&host.run_dir())?;
            let ids = if rules.is_empty() { Value::Null } else { json!(rules) };
            let answer = connection.ask_for(&json!({"request": "fault", "do": "clear", "ids": ids}))?;
            await_engines(&connection)?;
            Ok(format!("cleared {}\n", numbered(&answer["cleared"])))
        }
    }
}

fn add(add: &AddRules, host: &Host) -> Result<String, Failure> {
    let rules = match &add.file {
        Some(path) => of_file(path)?,
        None => add.rule.join(" "),
    };
    abi::fault::parse_all(&rules)?;
    let connection = start::ensure(host, &host.run_dir(), start::Wanted::default())?;
    let answer = connection.ask_for(&json!({"request": "fault", "do": "add", "rules": rules}))?;
    await_engines(&connection)?;
    if add.json {
        return Ok(crate::json::object(answer)?);
    }
    Ok(format!("added {}\n", numbered(&answer["added"])))
}

/// The rules of a TOML file, as text.
fn of_file(path: &std::path::Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    agent::faults::rules_of(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// The rules of a program run: those of the options, and those of the environment variable, which
/// may name a file. They are parsed here, so that an error is shown before the program starts.
pub(crate) fn of_run(options: &[String], environment: Option<&std::ffi::OsStr>) -> Result<Option<String>, String> {
    let mut rules = options.to_vec();
    if let Some(value) = environment.filter(|value| !value.is_empty()) {
        let path = PathBuf::from(value);
        let text = if path.is_file() { of_file(&path)? } else { value.to_string_lossy().into_owned() };
        rules.push(text);
    }
    let text = rules.join(";");
    let rules = abi::fault::parse_all(&text).map_err(|error| error.to_string())?;
    Ok((!rules.is_empty()).then(|| rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(";")))
}

/// Waits until the engines of all running programs know the rules. It gives up after [`TAKES`],
/// because a stopped program does not read them.
fn await_engines(connection: &Connection) -> Result<(), String> {
    let end = Instant::now() + TAKES;
    while Instant::now() < end {
        let answer = connection.ask_for(&json!({"request": "fault", "do": "list"}))?;
        if answer["pending"].as_u64().unwrap_or(0) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn numbered(ids: &Value) -> String {
    let ids: Vec<String> = ids.as_array().into_iter().flatten().map(ToString::to_string).collect();
    match ids.as_slice() {
        [] => "nothing".to_owned(),
        [one] => format!("rule {one}"),
        many => format!("rules {}", many.join(", ")),
    }
}

fn listed(answer: &Value) -> String {
    let rows: Vec<Vec<String>> = answer["rules"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let text = |member: &str| row[member].as_str().unwrap_or_default().to_owned();
            vec![row["id"].to_string(), row["acted"].to_string(), row["seen"].to_string(), text("scope"), text("rule")]
        })
        .collect();
    if rows.is_empty() {
        return "no rules\n".to_owned();
    }
    table::columns(&["RULE", "ACTED", "OF", "FOR", "FAULT"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_a_table() {
        let answer = json!({"rules": [
            {"id": 1, "rule": "loss 5%", "scope": "all programs", "seen": 200, "acted": 11},
            {"id": 12, "rule": "fail create_qp ENOMEM nth 2", "scope": "77 ib_write_bw", "seen": 3, "acted": 1},
        ]});
        assert_eq!(
            listed(&answer),
            "RULE  ACTED  OF   FOR             FAULT\n\
             1     11     200  all programs    loss 5%\n\
             12    1      3    77 ib_write_bw  fail create_qp ENOMEM nth 2\n"
        );
        assert_eq!(listed(&json!({"rules": []})), "no rules\n");
    }

    #[test]
    fn a_run_has_the_rules_of_its_options_and_of_the_environment() {
        let options = ["loss 5% seed 7".to_owned()];
        let rules = of_run(&options, Some("rnr=1%".as_ref())).expect("sound");
        assert_eq!(rules.as_deref(), Some("loss 5% seed 7;rnr 1%"));
        assert_eq!(of_run(&[], None), Ok(None));
        assert!(of_run(&["lose it".to_owned()], None).is_err());
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), "rules = [\"loss nth 3\"]").expect("written");
        assert_eq!(of_run(&[], Some(file.path().as_os_str())).expect("sound").as_deref(), Some("loss nth 3"));
    }

    #[test]
    fn the_help_has_every_kind_and_key() {
        let text = grammar();
        assert!(KINDS.iter().chain(&KEYS).all(|(word, ..)| text.contains(&format!("  {word} "))), "{text}");
    }
}
