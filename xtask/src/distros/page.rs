//! docs/distributions.md: how the programs of each release went, as a table with notes. It decides nothing.

use std::fmt::Write;

use super::packages;
use super::programs::{self, ALL};
use super::session::Verdict;
use super::symbols::{Needs, OTHERS, dotted};

/// One release in the table.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// The versions of its C library and of its rdma-core.
    pub(crate) facts: [String; 2],
    /// How each program went, in the order of the list.
    pub(crate) programs: Vec<Verdict>,
    /// How each package went, in the order of the list; none where it does not belong.
    pub(crate) packages: Vec<Option<Verdict>>,
}

const INTRODUCTION: &str = "# Distributions\n\n\
    Which programs of which distribution run on one and the same build. `cargo xtask distros` writes this page: it makes each release with \
    debootstrap, and runs that release's own programs, unmodified, as an ordinary user, with `softhca run`.\n\n";

const PACKAGES: &str = "\n## Packages\n\n\
    `cargo xtask distros` also makes the packages, and follows the section \"Install\" of the README in each release. Root installs the Debian \
    package; an ordinary user unpacks the tarball. Then an ordinary user runs `softhca doctor`, `ibv_devinfo` and `ibv_rc_pingpong`. The image \
    has a Debian 12 of its own: its layer is unpacked, and an ordinary user runs its default command there. Lintian must find no error and no \
    warning.\n\n";

/// The page.
pub(crate) fn written(columns: &[Column], needs: &Needs) -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut notes: Vec<String> = Vec::new();
    let titles = columns.iter().map(|column| {
        let [glibc, rdma_core] = &column.facts;
        format!("{} (glibc {glibc}, rdma-core {rdma_core})", column.title)
    });
    let _ = writeln!(page, "| program | {} |", titles.collect::<Vec<_>>().join(" | "));
    let _ = writeln!(page, "|---{}|", "|---".repeat(columns.len()));
    for (index, program) in ALL.iter().enumerate() {
        let cells: Vec<String> = columns.iter().map(|column| cell(&column.programs[index], &mut notes)).collect();
        let _ = writeln!(page, "| `{}` | {} |", program.name, cells.join(" | "));
    }
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    let _ = write!(page, "{PACKAGES}| package | {} |\n|---{}|\n", titles.join(" | "), "|---".repeat(columns.len()));
    for (index, package) in packages::ALL.iter().enumerate() {
        let verdicts = columns.iter().map(|column| column.packages[index].as_ref());
        let cells: Vec<String> = verdicts
            .map(|verdict| verdict.map_or_else(|| "–".to_owned(), |verdict| cell(verdict, &mut notes)))
            .collect();
        let _ = writeln!(page, "| {} | {} |", package.name, cells.join(" | "));
    }
    for (number, note) in (1..).zip(&notes) {
        let _ = writeln!(page, "{}{number}. {note}", if number == 1 { "\nFailures:\n\n" } else { "" });
    }
    let _ = write!(
        page,
        "\n## By symbols\n\n\
         A build on Debian 12 needs glibc {} and exports versions up to IBVERBS_{}. What other distributions have says what is to be expected \
         there; nothing of this was run.\n\n\
         | distribution | glibc | rdma-core | the same build |\n|---|---|---|---|\n",
        dotted(needs.glibc),
        dotted(needs.verbs)
    );
    for other in OTHERS {
        let glibc = other.glibc.map_or_else(|| "musl".to_owned(), dotted);
        let _ = writeln!(page, "| {} | {glibc} | {} | {} |", other.name, other.rdma_core, needs.judge(other));
    }
    page
}

/// The failures that nobody has explained.
pub(crate) fn unexplained(columns: &[Column]) -> Vec<String> {
    let all = columns.iter().flat_map(|column| column.rows().map(move |row| (column.title, row)));
    let failed = all.filter_map(|(title, (name, verdict))| match verdict {
        Verdict::Fails { why, said } if programs::explained(why).is_none() => {
            Some(format!("{title}: {name}: {why}\n{said}"))
        }
        _ => None,
    });
    failed.collect()
}

impl Column {
    /// The name of each row, and how it went.
    fn rows(&self) -> impl Iterator<Item = (&'static str, &Verdict)> {
        let programs = ALL.iter().map(|program| program.name).zip(&self.programs);
        let packages = packages::ALL.iter().zip(&self.packages);
        programs.chain(packages.filter_map(|(package, verdict)| Some((package.name, verdict.as_ref()?))))
    }
}

/// A cell; a failure points to a note, which those with the same words share.
fn cell(verdict: &Verdict, notes: &mut Vec<String>) -> String {
    match verdict {
        Verdict::Works(more) if more.is_empty() => "works".to_owned(),
        Verdict::Works(more) => format!("works: {more}"),
        Verdict::Fails { why, .. } => {
            let note = format!("{why}. {}", programs::explained(why).unwrap_or("Not explained yet."));
            let place = notes.iter().position(|known| *known == note).unwrap_or_else(|| {
                notes.push(note);
                notes.len() - 1
            });
            format!("**fails**, {}", place + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_and_wants_an_explanation() {
        let fails = |why: &str| Verdict::Fails { why: why.to_owned(), said: String::new() };
        let mut programs = vec![Verdict::Works(String::new()); ALL.len()];
        programs[0] = fails("libibverbs.so.1 has no version `IBVERBS_1.18'");
        programs[1] = programs[0].clone();
        programs[2] = fails("ends with 1: no luck");
        let mut packages = vec![Some(Verdict::Works(String::new())); packages::ALL.len()];
        packages[1] = Some(fails("ends with 1: no room"));
        packages[2] = None;
        let columns = [Column { title: "Here", facts: ["2.36".to_owned(), "44.0".to_owned()], programs, packages }];
        let page = written(&columns, &Needs { glibc: (2, 34), verbs: (1, 14), drivers: true });
        assert_eq!(page.matches("**fails**, 1 |").count(), 2, "{page}");
        assert_eq!(page.matches("2. ends with 1: no luck. Not explained yet.").count(), 1, "{page}");
        assert_eq!(page.matches("| – |\n").count(), 1, "{page}");
        let told =
            ["ibv_rc_pingpong -g 0 -c: ends with 1: no luck", "tarball: unpack, first lines: ends with 1: no room"];
        assert_eq!(unexplained(&columns), told.map(|told| format!("Here: {told}\n")));
    }
}
