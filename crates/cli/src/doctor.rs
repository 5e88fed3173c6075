//! `softhca doctor`: checks what works on this machine and what a program would load, and says what
//! to do if something does not work.
//!
//! It changes nothing and starts nothing. Each line is a [`Finding`]. The first lines are what
//! `softhca run` needs ([`crate::ready`]). Then come the named program ([`crate::program`]) and
//! other facts ([`checks`], [`addresses`]).

pub(crate) mod addresses;
mod checks;

use std::ffi::OsStr;

use serde_json::json;

use crate::colour::{self, Colour, paint};
use crate::failure::Failure;
use crate::finding::{Finding, Verdict};
use crate::place::{self, Host};
use crate::preload::{self, Extras};
use crate::program::Program;
use crate::ready::{self, Surroundings};

/// Runs all checks, also those of `program` if it is given. If a check fails, the command fails.
pub(crate) fn run(host: &Host, json: bool, program: Option<&OsStr>) -> Result<String, Failure> {
    let surroundings = Surroundings::of(host);
    let mut findings: Vec<Finding> = ready::checks(&surroundings).collect();
    if let Some(name) = program {
        let folder = place::library_folder().unwrap_or_default();
        findings.extend(Program::find(name).told(&folder, &preload::libraries(&folder, Extras::default())));
    }
    findings.extend(checks::all(&surroundings));
    findings.extend(addresses::conflicts(&surroundings));
    let failed = findings.iter().any(Finding::is_failure);
    let output = if json {
        crate::json::document("findings", json!(findings))?
    } else {
        text(&findings, colour::wanted(&std::io::stdout()))
    };
    if failed {
        return Err(Failure { output, ..Failure::from("") });
    }
    Ok(output)
}

fn text(findings: &[Finding], colours: bool) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => paint("ok  ", Colour::Green, colours),
            Verdict::Warn => paint("warn", Colour::Yellow, colours),
            Verdict::Fail => paint("FAIL", Colour::Red, colours),
        };
        text += &format!("{mark}  {:<16} {}\n", finding.what, finding.found);
        if let Some(next) = &finding.next {
            text += &format!("      {:<16} → {next}\n", "");
        }
    }
    text
}
