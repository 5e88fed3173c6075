//! The variable `SOFTHCA_LOG`: its name, its valid values, and the message for an invalid value.
//! The library and the `softhca` program have separate logs and print the same message. Principal
//! function: [`checked`].

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};

use shm::file_limit::without_signal;

/// The environment variable with the log filter.
pub const VARIABLE: &str = "SOFTHCA_LOG";

/// The words that a filter may have in place of a level or a module.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The prefixes of softhca's module names: its crates, and `softhca::reason` and `softhca::fault`.
const ROOTS: [&str; 28] = [
    "abi",
    "agent",
    "bench",
    "capture",
    "cm",
    "engine",
    "fabric",
    "ibumad",
    "ibverbs",
    "interpose",
    "ipoib",
    "iwarp",
    "mad",
    "plot",
    "preload",
    "protocol",
    "rdmacm",
    "rsocket",
    "rspreload",
    "shared",
    "shm",
    "sm",
    "softhca",
    "subnet",
    "tun",
    "udp",
    "umad",
    "wire",
];

/// The text of the variable, if it can be a filter. A single word that is no level names a module.
/// An unknown module would never log anything, so it is refused.
///
/// # Errors
/// The error as a sentence.
pub fn checked(value: &OsStr) -> Result<&str, String> {
    let text = value.to_str().ok_or_else(|| refused(value, &"it is not UTF-8"))?;
    match text.split(',').map(str::trim).find(|part| !is_known(part)) {
        Some(word) => Err(refused(value, &format_args!("{word:?} is neither a level nor a module of softhca"))),
        None => Ok(text),
    }
}

/// Whether a part of a filter is more than a plain word, or is a known word.
fn is_known(part: &str) -> bool {
    let is_word = part.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-' | ':'));
    let is_level =
        LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level)) || matches!(part.as_bytes(), [b'0'..=b'5']);
    let root = part.split("::").next().unwrap_or_default();
    let root = root.strip_prefix("softhca_").unwrap_or(root);
    part.is_empty() || !is_word || is_level || ROOTS.contains(&root)
}

/// The message for an invalid filter.
#[must_use]
pub fn refused(value: &OsStr, why: &dyn fmt::Display) -> String {
    format!(
        "{VARIABLE}={value:?} is no filter ({why}): it takes error, warn, info, debug or trace, or modules with a level as in \
         engine=debug,softhca::fault=info"
    )
}

/// Standard error for a log: text that does not fit is lost, and the program goes on.
#[derive(Clone, Copy, Debug)]
pub struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        without_signal(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_neither_level_nor_module_is_refused() {
        for text in [
            "debug",
            "DEBUG",
            "off",
            "3",
            "engine",
            "softhca_engine",
            "engine::lane",
            "softhca::fault",
            "engine=debug",
            "warn,engine=trace",
            "other=debug",
            "debug,",
            "[span{qp=7}]=trace",
            "engine,agent",
        ] {
            assert_eq!(checked(OsStr::new(text)), Ok(text));
        }
        for (text, word) in
            [("debg", "debg"), ("verbose", "verbose"), ("6", "6"), ("warn, engin", "engin"), ("on", "on")]
        {
            let why = checked(OsStr::new(text)).expect_err(text);
            assert!(why.contains(&format!("({word:?} is neither a level nor a module")), "{why}");
            assert!(why.contains("error, warn, info, debug or trace"), "{why}");
        }
    }

    /// A new crate must be added to the list.
    #[test]
    fn every_crate_that_may_log_is_known() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for folder in ["crates", "capi"] {
            for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
                let manifest =
                    std::fs::read_to_string(entry.expect("an entry").path().join("Cargo.toml")).expect("a crate");
                let name = |section: &str| {
                    let rest = manifest.split(section).nth(1)?;
                    rest.lines()
                        .find_map(|line| line.strip_prefix("name = "))
                        .map(|name| name.trim_matches('"').to_owned())
                };
                let name = name("[lib]").or_else(|| name("[[bin]]")).or_else(|| name("[package]")).expect("a name");
                assert!(is_known(&name.replace('-', "_")), "{name} is missing from ROOTS");
            }
        }
    }
}
