//! A finding: what was checked, what was found, and what to do next.
//!
//! `softhca doctor` prints findings, and `softhca run` uses the same findings to refuse. This
//! module makes no checks. The principal type is [`Finding`].

use serde::Serialize;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Nothing is wrong.
    Ok,
    /// Something is missing that softhca can do without.
    Warn,
    /// Programs do not work, or do not use softhca.
    Fail,
}

/// The result of one check, which is one line of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl Finding {
    pub(crate) fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Ok, found: found.into(), next: None }
    }

    pub(crate) fn warn(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Warn, found: found.into(), next: Some(next.into()) }
    }

    pub(crate) fn fail(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Fail, found: found.into(), next: Some(next.into()) }
    }

    /// A failure whose sentence already names the next step.
    pub(crate) fn refused(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Fail, found: why.into(), next: None }
    }

    /// Whether programs do not work because of this finding.
    pub(crate) fn is_failure(&self) -> bool {
        self.verdict == Verdict::Fail
    }

    /// The finding as one sentence.
    pub(crate) fn sentence(&self) -> String {
        match &self.next {
            Some(next) => format!("{}; {next}", self.found),
            None => self.found.clone(),
        }
    }
}
