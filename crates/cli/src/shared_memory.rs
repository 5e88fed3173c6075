//! `softhca run --shared-memory`: whether a program's large memory is shared. The environment
//! variable does the same for every `softhca run`. The principal function is [`wanted`].

use std::ffi::{OsStr, OsString};

/// The environment variable, which the preloaded library reads.
pub(crate) const VARIABLE: &str = "SOFTHCA_SHARED_MEMORY";

/// The least size that the variable can give.
const PAGE: u64 = 4096;

/// The value of the variable for the program, or `None` if its memory stays private. `option`: the
/// command line asks for shared memory.
pub(crate) fn wanted(option: bool, variable: Option<&OsStr>) -> Result<Option<OsString>, String> {
    let usual = option.then(|| OsString::from("1"));
    let Some(value) = variable.filter(|value| !value.is_empty()) else { return Ok(usual) };
    match value.to_str().and_then(|text| text.parse::<u64>().ok()) {
        Some(0) => Ok(usual),
        Some(number) if number == 1 || number >= PAGE => Ok(Some(value.to_owned())),
        _ => Err(format!(
            "{VARIABLE}={} must be 0, 1, or the least size of shared memory: a number of bytes from {PAGE} on",
            value.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_and_the_variable_switch_it_on() {
        let wanted = |option, variable: Option<&str>| wanted(option, variable.map(OsStr::new));
        for (option, variable, expected) in [
            (false, None, None),
            (false, Some(""), None),
            (false, Some("0"), None),
            (true, None, Some("1")),
            (true, Some("0"), Some("1")),
            (false, Some("1"), Some("1")),
            (true, Some("65536"), Some("65536")),
        ] {
            assert_eq!(wanted(option, variable), Ok(expected.map(OsString::from)), "{option} {variable:?}");
        }
        assert!(wanted(true, Some("yes")).expect_err("no number").contains("must be 0, 1"));
        assert!(wanted(false, Some("100")).is_err());
    }
}
