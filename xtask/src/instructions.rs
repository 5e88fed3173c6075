//! `cargo xtask instructions`: what each step of a message of 8 bytes takes: instructions, loads,
//! stores and misses under valgrind, and time. It prints a table for docs/performance.md, and which
//! source files the instructions come from. Other programs hardly change the counts, except those of
//! WRITE, READ and fetch-and-add: these wait, and polls that find nothing count as well.
//!
//! The program is `suite/programs/steps.c`. One thread plays both sides, so a miss here is not a
//! cache line that moves between processors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use harness::{Dist, Outcome, Room, cprogram};

use crate::dist;
use crate::workspace::Workspace;

/// The functions of the program, and what each does.
const STEPS: [(&str, &str); 8] = [
    ("step_post_receive", "post a receive request"),
    ("step_post_send", "post and transmit"),
    ("step_poll_message", "poll: receive, acknowledge, complete"),
    ("step_poll_acknowledgement", "poll: take the acknowledgement, complete"),
    ("step_poll_nothing", "poll that finds nothing"),
    ("step_write", "WRITE, with its completion"),
    ("step_read", "READ, with its completion"),
    ("step_fetch_add", "fetch-and-add, with its completion"),
];
/// Batches of messages for the time, and for the counts.
const TIMED: &str = "2000";
const COUNTED: &str = "10";
/// How often the program then does each step, with its 20 first batches.
const CALLS: u64 = 3000;
/// A file with fewer instructions in a step is not listed.
const FEW: u64 = 10;

/// What callgrind counts in one file: instructions, loads, stores, and what a first-level cache of
/// 32 KiB would miss of the code and of the data.
#[derive(Clone, Copy, Default)]
struct Counts {
    instructions: u64,
    loads: u64,
    stores: u64,
    code: u64,
    data: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.code += other.code;
        self.data += other.data;
    }

    /// Fields of a line of costs: the line, Ir, Dr, Dw, I1mr, D1mr, D1mw and more. Zeros at the end
    /// are left out.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u64>());
        fields.next()?.ok()?;
        let mut next = || fields.next().and_then(Result::ok).unwrap_or(0);
        let [instructions, loads, stores, code] = std::array::from_fn(|_| next());
        Some(Self { instructions, loads, stores, code, data: next() + next() })
    }
}

/// The costs of each file, without those of the functions that it calls.
fn by_file(text: &str) -> BTreeMap<String, Counts> {
    let mut found = BTreeMap::<_, Counts>::new();
    let mut file = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        // An inlined function has a file of its own.
        if let Some(name) = ["fl=", "fi=", "fe="].iter().find_map(|prefix| line.strip_prefix(prefix)) {
            file = name.to_owned();
        } else if line.starts_with("calls=") {
            lines.next();
        } else if let Some(counts) = Counts::parse(line) {
            found.entry(file.clone()).or_default().add(counts);
        }
    }
    found
}

/// The name of a source file in the list.
fn shown(file: &str) -> String {
    let own = ["/crates/", "/capi/"].iter().find_map(|folder| Some(file.split_once(folder)?.1));
    match own {
        Some(rest) if !file.contains("/.cargo/") => rest.replacen("/src/", "/", 1),
        _ if file.contains("/library/") || file.contains("/.cargo/") => "libraries of Rust".to_owned(),
        _ => "assembly and the C library".to_owned(),
    }
}

/// Counts one step: the counts of all files together, and the instructions of each.
fn count(room: &Room, program: &Path, step: &str) -> Result<(Counts, BTreeMap<String, u64>), String> {
    let output = room.folder().join(step);
    let options = [format!("--toggle-collect={step}"), format!("--callgrind-out-file={}", output.display())];
    let mut words = vec!["valgrind", "--quiet", "--tool=callgrind", "--cache-sim=yes"];
    words.extend(["--compress-strings=no", "--compress-pos=no"]);
    words.extend(options.iter().map(String::as_str));
    let program = program.display().to_string();
    words.extend([program.as_str(), COUNTED]);
    succeeded(room.finish_run(&words)?)?;
    let text = fs::read_to_string(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let (mut all, mut files) = (Counts::default(), BTreeMap::new());
    for (file, counts) in by_file(&text) {
        all.add(counts);
        *files.entry(shown(&file)).or_default() += counts.instructions;
    }
    Ok((all, files))
}

fn succeeded(outcome: Outcome) -> Result<Outcome, String> {
    if outcome.succeeded() { Ok(outcome) } else { Err(outcome.told()) }
}

/// Measures and prints.
pub(crate) fn run(workspace: &Workspace, folder: Option<PathBuf>) -> Result<(), String> {
    let dist = match folder {
        Some(folder) => Dist::at(folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?),
        None => dist::run(workspace)?,
    };
    let room = Room::with(dist)?;
    let program = cprogram::build(&room, "steps")?;
    let timed = succeeded(room.finish_run(&[&program.display().to_string(), TIMED])?)?;
    let time = |step: &str| timed.output.lines().find_map(|line| line.strip_prefix(step)).unwrap_or("–").trim();
    println!("| step | instructions | loads | stores | misses: code | data | time |\n|---|---|---|---|---|---|---|");
    let mut parts = String::new();
    for (step, what) in STEPS {
        let (all, files) = count(&room, &program, step)?;
        let each = |count: u64| count as f64 / CALLS as f64;
        let Counts { instructions, loads, stores, code, data } = all;
        let row = [instructions, loads, stores, code, data].map(|count| format!("{:.0}", each(count)));
        println!("| {what} | {} | {} ns |", row.join(" | "), time(step));
        let mut files: Vec<_> = files.into_iter().filter(|(_, count)| *count >= FEW * CALLS).collect();
        files.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let files: Vec<_> = files.iter().map(|(file, count)| format!("{file} {:.0}", each(*count))).collect();
        parts += &format!("* {what}: {}\n", files.join(", "));
    }
    println!("\nInstructions by source file:\n\n{parts}");
    println!(
        "valgrind has no restartable sequences. So the counts of WRITE, READ and fetch-and-add are those of a lane,"
    );
    println!("for both sides together, and their times are those of direct access.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_belong_to_the_file_before_them_and_calls_are_left_out() {
        let text = "events: Ir Dr Dw I1mr D1mr D1mw\nfl=/x/crates/engine/src/send.rs\nfn=post\n3 10 4 2 1\n\
                    fi=/x/crates/shm/src/ring.rs\n5 7 0 1 0 0 2\ncfn=other\ncalls=1 9\n6 100 50 50\n\
                    fe=/x/crates/engine/src/send.rs\n8 1\n";
        let found = by_file(text);
        let of = |file| found.get(file).copied().unwrap_or_default();
        let send = of("/x/crates/engine/src/send.rs");
        assert_eq!((send.instructions, send.loads, send.stores, send.code), (11, 4, 2, 1));
        let ring = of("/x/crates/shm/src/ring.rs");
        assert_eq!((ring.instructions, ring.data), (7, 2));
        assert_eq!(shown("/x/crates/engine/src/cq/adding.rs"), "engine/cq/adding.rs");
        assert_eq!(shown("/x/capi/libibverbs/src/post.rs"), "libibverbs/post.rs");
        assert_eq!(shown("/rustc/1/library/core/src/x.rs"), "libraries of Rust");
    }
}
