//! The table `releases.txt` of a library: which release of rdma-core exports which symbol. The
//! build scripts make the linker's version script from it, and `cargo xtask abi-check` compares
//! each release with the exported symbols. The list of exported functions is in `src/exports.rs`,
//! not here.
//!
//! The principal type is [`Releases`].

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::RangeInclusive;

/// The first release in the table.
const OLDEST: u32 = 34;
/// Stands for the private node of each release in place of a symbol's node.
const PRIVATE: &str = "IBVERBS_PRIVATE";

/// A name and its version node.
pub(crate) type Symbol<'a> = (&'a str, &'a str);

/// Something that exists in a range of releases.
struct Row<T> {
    what: T,
    releases: RangeInclusive<u32>,
}

/// The table.
pub(crate) struct Releases<'a> {
    newest: u32,
    nodes: Vec<Row<&'a str>>,
    symbols: Vec<Row<Symbol<'a>>>,
}

impl<'a> Releases<'a> {
    /// Parses the table.
    ///
    /// # Errors
    /// The first line that is not a row of the table.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        let mut table = Self { newest: 0, nodes: Vec::new(), symbols: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            table.read(line).ok_or_else(|| format!("this is no row of a table of releases: {line}"))?;
        }
        Ok(table)
    }

    fn read(&mut self, line: &'a str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words {
            ["newest", newest] => self.newest = newest.parse().ok()?,
            ["node", what, first, last] => {
                let releases = self.span(first, last)?;
                self.nodes.push(Row { what, releases });
            }
            [name, node, first, last] => {
                let releases = self.span(first, last)?;
                if node != PRIVATE && !self.nodes.iter().any(|row| row.what == node) {
                    return None;
                }
                self.symbols.push(Row { what: (name, node), releases });
            }
            _ => return None,
        }
        Some(())
    }

    fn span(&self, first: &str, last: &str) -> Option<RangeInclusive<u32>> {
        let (first, last) = (first.parse().ok()?, if last == "-" { self.newest } else { last.parse().ok()? });
        (OLDEST <= first && first <= last && last <= self.newest).then_some(first..=last)
    }

    /// All releases, the oldest first.
    pub(crate) fn releases(&self) -> RangeInclusive<u32> {
        OLDEST..=self.newest
    }

    /// The nodes of one release.
    pub(crate) fn nodes(&self, release: u32) -> impl Iterator<Item = &'a str> {
        self.nodes.iter().filter(move |row| row.releases.contains(&release)).map(|row| row.what)
    }

    /// The symbols of one release.
    pub(crate) fn symbols(&self, release: u32) -> BTreeSet<Symbol<'a>> {
        let private = self.nodes(release).find(|node| node.starts_with(PRIVATE)).unwrap_or(PRIVATE);
        let there = self.symbols.iter().filter(|row| row.releases.contains(&release));
        there.map(|row| row.what).map(|(name, node)| (name, if node == PRIVATE { private } else { node })).collect()
    }

    /// The linker's version script: the public nodes, each inheriting from the one before it, the
    /// private nodes, and the nodes in `own`, whose symbols no release of rdma-core has. The script
    /// must list every name, because the linker hides an older version of a name that it does not
    /// list.
    pub(crate) fn version_script(&self, own: &[&str]) -> String {
        let all: BTreeSet<Symbol> = self.releases().flat_map(|release| self.symbols(release)).collect();
        let (mut script, mut before) = (String::new(), "");
        for node in self.nodes.iter().map(|row| row.what) {
            let names: String =
                all.iter().filter(|symbol| symbol.1 == node).map(|(name, _)| format!(" {name};")).collect();
            let global = if names.is_empty() { names } else { format!(" global:{names}") };
            let rest = if before.is_empty() { " local: *;" } else { "" };
            let (on, public) = if node.starts_with(PRIVATE) { ("", false) } else { (before, true) };
            let _ = writeln!(script, "{node} {{{global}{rest} }} {on};");
            before = if public { node } else { before };
        }
        for node in own {
            let _ = writeln!(script, "{node} {{ }};");
        }
        script
    }
}
