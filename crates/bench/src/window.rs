//! Checks what a peer has written to the window. The principal function is [`in_window`].

use crate::contents::Pattern;
use crate::error::Result;
use crate::look::{Look, Vain};
use crate::team::Team;

/// How often the thread polls memory that the other side may still write.
const SETTLE: u32 = 1 << 16;

/// Checks that a message is in the window. Its last byte may arrive before all others.
pub(crate) fn in_window(
    team: &Team,
    pattern: &mut Pattern,
    size: usize,
    lane: usize,
    number: u64,
    look: Look<'_>,
) -> Result<()> {
    let start = team.range(lane, number, size).start;
    let mut vain = Vain::default();
    let mut checked = pattern.check(size, lane, number, |into| team.window.read(start, into));
    for _ in 0..SETTLE {
        if checked.is_ok() {
            break;
        }
        look.again(&mut vain)?;
        checked = pattern.check(size, lane, number, |into| team.window.read(start, into));
    }
    checked
}
