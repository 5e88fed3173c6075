//! `softhca run --shared-memory`: whether a program's large memory is shared. The options decide
//! first, then the environment variable, then the agent's configuration. The principal function is
//! [`wanted`].

use std::ffi::{OsStr, OsString};

/// The environment variable, which the preloaded library reads.
pub(crate) const VARIABLE: &str = "SOFTHCA_SHARED_MEMORY";

/// The least size that the variable can give.
const PAGE: u64 = 4096;

/// Values of the variable: private memory, and shared memory of the usual size.
const PRIVATE: &str = "0";
const USUAL: &str = "1";

/// The value of the variable for the program, or `None` if nobody has decided. Then the memory is
/// private. `option`: what the command line asks for. `configured`: what the agent's configuration
/// asks for.
pub(crate) fn wanted(
    option: Option<bool>,
    variable: Option<&OsStr>,
    configured: impl FnOnce() -> Result<bool, String>,
) -> Result<Option<OsString>, String> {
    let value = variable.filter(|value| !value.is_empty());
    let number = value.map(|value| number(value).map(|number| (number, value))).transpose()?;
    let is_shared = match (option, number) {
        (Some(option), _) => option,
        (None, Some((number, _))) => number != 0,
        (None, None) if configured()? => true,
        (None, None) => return Ok(None),
    };
    let value = match number {
        _ if !is_shared => PRIVATE.into(),
        Some((PAGE.., value)) => value.to_owned(),
        _ => USUAL.into(),
    };
    Ok(Some(value))
}

/// Whether a value of [`wanted`] asks for shared memory.
pub(crate) fn is_shared(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| value != PRIVATE)
}

/// Parses the variable.
fn number(value: &OsStr) -> Result<u64, String> {
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.filter(|number| matches!(number, 0 | 1 | PAGE..)).ok_or_else(|| {
        format!(
            "{VARIABLE}={} must be 0, 1, or the least size of shared memory: a number of bytes from {PAGE} on",
            value.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_decide_before_the_variable_and_the_variable_before_the_configuration() {
        let wanted = |option, variable: Option<&str>, configured| {
            wanted(option, variable.map(OsStr::new), || Ok(configured))
                .map(|value| value.map(|value| value.into_string().expect("text")))
        };
        for (option, variable, configured, expected) in [
            (None, None, false, None),
            (None, None, true, Some("1")),
            (None, Some(""), true, Some("1")),
            (None, Some("0"), true, Some("0")),
            (None, Some("1"), false, Some("1")),
            (None, Some("65536"), false, Some("65536")),
            (Some(true), None, false, Some("1")),
            (Some(true), Some("0"), false, Some("1")),
            (Some(true), Some("65536"), false, Some("65536")),
            (Some(false), Some("65536"), true, Some("0")),
            (Some(false), None, true, Some("0")),
        ] {
            let found = wanted(option, variable, configured);
            assert_eq!(found.as_ref().map(Option::as_deref), Ok(expected), "{option:?} {variable:?}");
            let is_one = expected.is_some_and(|value| value != "0");
            assert_eq!(is_shared(expected.map(OsStr::new)), is_one);
        }
        assert!(wanted(Some(true), Some("yes"), false).expect_err("no number").contains("must be 0, 1"));
        assert!(wanted(None, Some("100"), false).is_err());
    }

    #[test]
    fn the_agent_is_asked_only_if_nothing_else_decides() {
        let refused = || Err("the agent does not answer".to_owned());
        assert!(super::wanted(None, Some(OsStr::new("1")), refused).is_ok());
        assert!(super::wanted(Some(false), None, refused).is_ok());
        assert!(super::wanted(None, None, refused).is_err());
    }
}
