//! `cargo xtask demo`: a first look. Builds softhca, runs Debian's own verbs programs on it, and
//! shows their output.
//!
//! It tests nothing that `test` does not test better. With it, a person sees softhca work with one
//! command.

use harness::{Dist, HANG, Pair, Room, Sides, figures};

use crate::workspace::Workspace;
use crate::{debian, dist};

/// Runs the demonstration.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    debian::require(debian::DEMO)?;
    let dist = dist::run(workspace)?;
    let room = Room::with(dist)?;
    let mut summary = Summary::new(room.dist());

    let info = show(&room, &["ibv_devinfo"])?;
    let active = info.contains("PORT_ACTIVE");
    summary.add("ibv_devinfo", if active { "softhca0, port ACTIVE".to_owned() } else { "no active port".to_owned() });

    let words = ["ibv_rc_pingpong", "-g", "0", "-c"];
    let sides = pair(&room, &words)?;
    let (time, rate) = figures::pingpong(&sides.client.output).ok_or("ibv_rc_pingpong printed no figures")?;
    summary.add(&words.join(" "), format!("{time} µs per exchange of 4096 B, {rate} Mbit/s, data validated"));

    let words = ["ib_send_lat", "-s", "8"];
    let sides = pair(&room, &words)?;
    let time = figure(&sides, "t_avg[usec]")?;
    summary.add(&words.join(" "), format!("{time} µs, one way"));

    let words = ["ib_write_bw", "-s", "1048576"];
    let sides = pair(&room, &words)?;
    let rate = figure(&sides, "BW average[MB/sec]")?;
    summary.add(&words.join(" "), format!("{rate} MiB/s"));

    summary.print();
    Ok(())
}

fn figure(sides: &Sides, column: &str) -> Result<f64, String> {
    figures::perftest(&sides.client.output, column).ok_or_else(|| format!("no {column} in what perftest printed"))
}

/// Runs one program and shows its output.
fn show(room: &Room, words: &[&str]) -> Result<String, String> {
    println!("\n$ softhca run -- {}", words.join(" "));
    let outcome = room.finish_run(words)?;
    print!("{}", outcome.everything());
    if outcome.succeeded() { Ok(outcome.output) } else { Err(outcome.told()) }
}

/// Runs a pair and shows the client's output.
fn pair(room: &Room, words: &[&str]) -> Result<Sides, String> {
    println!("\n$ softhca run -- {line} &\n$ softhca run -- {line} 127.0.0.1", line = words.join(" "));
    let sides = Pair::start(room, words)?.wait(HANG)?;
    print!("{}", sides.client.everything());
    for side in [&sides.server, &sides.client] {
        if !side.succeeded() {
            return Err(side.told());
        }
    }
    Ok(sides)
}

struct Summary {
    folder: String,
    rows: Vec<(String, String)>,
}

impl Summary {
    fn new(dist: &Dist) -> Self {
        Self { folder: dist.folder().display().to_string(), rows: Vec::new() }
    }

    fn add(&mut self, what: &str, result: String) {
        self.rows.push((what.to_owned(), result));
    }

    fn print(&self) {
        println!("\nDebian's programs, unmodified, on softhca (no RDMA hardware, no kernel module):\n");
        for (what, result) in &self.rows {
            println!("  {what:<28} {result}");
        }
        println!("\nYour own programs: {}/bin/softhca run -- PROGRAM", self.folder);
    }
}
