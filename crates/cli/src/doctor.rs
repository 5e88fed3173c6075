//! `softhca doctor`: what works on this machine, what a program would load, and what to do where something does not work.
//!
//! It changes nothing and starts nothing. Each line is a [`Finding`]; the checks are in [`checks`].

mod checks;

use serde::Serialize;

use crate::Failure;
use crate::place::Host;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    /// Something is missing that softhca can do without.
    Warn,
    /// Programs will not work.
    Fail,
}

/// One line: what was looked at, what was found, what to do next.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Ok, found: found.into(), next: None }
    }

    fn warn(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Warn, found: found.into(), next: Some(next.into()) }
    }

    fn fail(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Fail, found: found.into(), next: Some(next.into()) }
    }
}

/// Runs all checks; a check that fails makes the command fail.
pub(crate) fn run(host: &Host, json: bool) -> Result<String, Failure> {
    let findings = checks::all(host);
    let output = if json { serde_json::to_string_pretty(&findings)? + "\n" } else { text(&findings) };
    if findings.iter().any(|finding| finding.verdict == Verdict::Fail) {
        return Err(Failure { output, ..Failure::from("") });
    }
    Ok(output)
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        text += &format!("{mark}  {:<16} {}\n", finding.what, finding.found);
        if let Some(next) = &finding.next {
            text += &format!("      {:<16} → {next}\n", "");
        }
    }
    text
}
