//! What `SOFTHCA_LOG` says: the name of the variable, what its value may be, and the sentence for one that is no filter. The library and the
//! `softhca` program each have a log of their own, and say the same. Principal function: [`checked`].

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};

use shm::file_limit::without_signal;

/// The environment variable that says what is logged.
pub const VARIABLE: &str = "SOFTHCA_LOG";

/// What a filter may have in place of a level or a module.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What the names of softhca's modules begin with: its crates, and `softhca::reason` and `softhca::fault`.
const ROOTS: [&str; 18] = [
    "abi",
    "agent",
    "bench",
    "capture",
    "cm",
    "engine",
    "fabric",
    "ibverbs",
    "interpose",
    "preload",
    "protocol",
    "rdmacm",
    "rsocket",
    "rspreload",
    "shm",
    "softhca",
    "udp",
    "wire",
];

/// The text of the variable, if it may be a filter. A single word that is no level stands for a module of that name: for one that there is not,
/// nothing would ever be logged.
///
/// # Errors
/// What is wrong with it, as a sentence.
pub fn checked(value: &OsStr) -> Result<&str, String> {
    let text = value.to_str().ok_or_else(|| refused(value, &"it is not UTF-8"))?;
    match text.split(',').map(str::trim).find(|part| !is_known(part)) {
        Some(word) => Err(refused(value, &format_args!("{word:?} is neither a level nor a module of softhca"))),
        None => Ok(text),
    }
}

/// Whether a part of a filter is more than a word, or a word that means something.
fn is_known(part: &str) -> bool {
    let is_word = part.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-' | ':'));
    let is_level =
        LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level)) || matches!(part.as_bytes(), [b'0'..=b'5']);
    let root = part.split("::").next().unwrap_or_default();
    let root = root.strip_prefix("softhca_").unwrap_or(root);
    part.is_empty() || !is_word || is_level || ROOTS.contains(&root)
}

/// What is said of a value that is no filter.
#[must_use]
pub fn refused(value: &OsStr, why: &dyn fmt::Display) -> String {
    format!(
        "{VARIABLE}={value:?} is no filter ({why}): it takes error, warn, info, debug or trace, or modules with a level as in \
         engine=debug,softhca::fault=info"
    )
}

/// Standard error, as a program's log needs it: what there is no room for is lost, and the program goes on.
#[derive(Clone, Copy, Debug)]
pub struct Output;

impl Write for Output {
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

    /// A crate that is new has to be added.
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
