//! Colours on a terminal. There are no colours if the output is not a terminal, if `NO_COLOR` is
//! set (no-color.org), or if `TERM` is unset or `dumb`. The principal function is [`paint`].

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;

/// A colour, by its number in the escape sequences of terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Red = 31,
    Green = 32,
    Yellow = 33,
    Cyan = 36,
}

/// Whether colours may be written to `stream`.
pub(crate) fn wanted(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && allowed(|name| env::var_os(name))
}

/// Whether the environment allows colours on a terminal.
fn allowed(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = variable("TERM").is_none_or(|term| term == "dumb");
    !refused && !dumb
}

/// `text` in a colour, if colours are wanted.
pub(crate) fn paint(text: &str, colour: Colour, wanted: bool) -> String {
    if wanted { format!("\x1b[{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{Colour, allowed, paint};

    #[test]
    fn no_color_and_dumb_terminals_are_honoured() {
        for (variables, expected) in [
            (&[("TERM", "xterm")][..], true),
            (&[("TERM", "xterm"), ("NO_COLOR", "1")], false),
            (&[("TERM", "xterm"), ("NO_COLOR", "0")], false),
            (&[("TERM", "xterm"), ("NO_COLOR", "")], true),
            (&[("TERM", "dumb")], false),
            (&[], false),
        ] {
            let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            assert_eq!(allowed(value), expected, "{variables:?}");
        }
    }

    #[test]
    fn text_is_painted_only_where_that_is_wanted() {
        assert_eq!(paint("FAIL", Colour::Red, true), "\x1b[31mFAIL\x1b[0m");
        assert_eq!(paint("FAIL", Colour::Red, false), "FAIL");
    }
}
