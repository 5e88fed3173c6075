//! The IPoIB interfaces of a topology's node, as programs on it find them.
//!
//! The file [`FILE`] in the node's run directory has a line for each: the name, a space, the
//! address.

use std::net::IpAddr;

/// Name of the file in the node's run directory.
pub const FILE: &str = "interfaces";

/// The interfaces that a file names. Lines that name none are skipped.
pub fn parse(text: &str) -> impl Iterator<Item = (&str, IpAddr)> {
    text.lines().filter_map(|line| {
        let (name, address) = line.split_once(' ')?;
        Some((name, address.parse().ok()?))
    })
}

/// The file that names these interfaces.
pub fn emit<'a>(interfaces: impl IntoIterator<Item = (&'a str, IpAddr)>) -> String {
    interfaces.into_iter().map(|(name, address)| format!("{name} {address}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        let two = [("ib0", "127.1.0.1".parse().unwrap()), ("ib1", "fd00::7".parse().unwrap())];
        let text = emit(two);
        assert_eq!(text, "ib0 127.1.0.1\nib1 fd00::7\n");
        assert!(parse(&text).eq(two));
        assert_eq!(parse("ib0\nib1 x\n\n").count(), 0);
    }
}
