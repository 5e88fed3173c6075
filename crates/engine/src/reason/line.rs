//! The lines of the file that `SOFTHCA_REASONS` names. The library writes them, and `softhca run`
//! reads them.
//!
//! A line is `WORD PID: SENTENCE`. The word is a reason's kind, or one of two other words for facts
//! that `softhca run` cannot see from outside. Principal type: [`Line`].

use super::ReasonKind;

const OPENED: &str = "opened";
const WENT_ON: &str = "went-on";

/// The content of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A reason.
    Reason(ReasonKind, &'a str),
    /// The process has opened a device.
    Opened,
    /// The process has made or changed an object after a refused call, so the refusal did not stop
    /// it.
    WentOn,
}

impl<'a> Line<'a> {
    /// The line as process `pid` writes it.
    pub(super) fn written(self, pid: u32) -> String {
        match self {
            Self::Reason(kind, sentence) => format!("{} {pid}: {sentence}\n", kind.word()),
            Self::Opened => format!("{OPENED} {pid}: a device\n"),
            Self::WentOn => format!("{WENT_ON} {pid}: after refused calls\n"),
        }
    }

    /// Parses the process and the content. A line of another form is a sentence that the program
    /// itself has written.
    #[must_use]
    pub fn read(line: &'a str) -> (u32, Self) {
        let known = || {
            let (head, sentence) = line.split_once(": ")?;
            let (word, pid) = head.split_once(' ')?;
            let what = match word {
                OPENED => Self::Opened,
                WENT_ON => Self::WentOn,
                word => Self::Reason(ReasonKind::of_word(word)?, sentence),
            };
            Some((pid.parse().ok()?, what))
        };
        known().unwrap_or((0, Self::Reason(ReasonKind::Noted, line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let reasons = ReasonKind::ALL.into_iter().map(|kind| Line::Reason(kind, "QP 0x1: why: because"));
        for line in reasons.chain([Line::Opened, Line::WentOn]) {
            assert_eq!(Line::read(line.written(7).trim_end()), (7, line));
        }
        for other in ["", "failed", "failed: x", "failed x: y", "4: 5", "worse 7: y"] {
            assert_eq!(Line::read(other), (0, Line::Reason(ReasonKind::Noted, other)));
        }
    }
}
