//! Writes docs/distributions.md: the result of each program in each release, as a table with notes.
//! It makes no decisions.

use std::fmt::Write;

use super::packages;
use super::programs::{self, ALL, EXPLAINED, LEFT_OUT};
use super::session::TestResult;
use super::symbols::{Needs, OTHERS, dotted};

/// The results of one release.
#[derive(Debug)]
pub(crate) struct ReleaseColumn {
    /// Its name in the archive.
    pub(crate) suite: &'static str,
    pub(crate) title: &'static str,
    /// The versions of its C library and its rdma-core.
    pub(crate) facts: [String; 2],
    /// The result of each program, in the order of the list.
    pub(crate) programs: Vec<TestResult>,
    /// The result of each package, in the order of the list; none if it is not for this release.
    pub(crate) packages: Vec<Option<TestResult>>,
}

const INTRODUCTION: &str = "# Distributions\n\n\
    Which programs of which distribution run on one and the same build. `cargo xtask distros` writes this page: it makes each release with \
    debootstrap, and runs that release's own programs, unmodified, as an ordinary user, with `softhca run`.\n\n";

const PACKAGES: &str = "\n## Packages\n\n\
    `cargo xtask distros` also makes the packages, and follows the section \"Install\" of the README in each release. Root installs the Debian \
    package; an ordinary user unpacks the tarball. Then an ordinary user runs `softhca doctor`, `ibv_devinfo` and `ibv_rc_pingpong`. The image \
    has a Debian 12 of its own: its layer is unpacked, and an ordinary user runs its default command there. Lintian must find no error and no \
    warning.\n\n";

/// Returns the page.
pub(crate) fn written(columns: &[ReleaseColumn], needs: &Needs) -> Result<String, String> {
    let mut page = INTRODUCTION.to_owned();
    let mut notes: Vec<String> = Vec::new();
    let titles = columns.iter().map(|column| {
        let [glibc, rdma_core] = &column.facts;
        format!("{} (glibc {glibc}, rdma-core {rdma_core})", column.title)
    });
    let _ = writeln!(page, "| program | {} |", titles.collect::<Vec<_>>().join(" | "));
    let _ = writeln!(page, "|---{}|", "|---".repeat(columns.len()));
    for (index, program) in ALL.iter().enumerate() {
        let verdicts = columns.iter().map(|column| (column, &column.programs[index]));
        let cells: Vec<String> =
            verdicts.map(|(column, verdict)| cell(column.suite, program.name, verdict, &mut notes)).collect();
        let _ = writeln!(page, "| `{}` | {} |", program.name, cells.join(" | "));
    }
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    let _ = write!(page, "{PACKAGES}| package | {} |\n|---{}|\n", titles.join(" | "), "|---".repeat(columns.len()));
    for (index, package) in packages::ALL.iter().enumerate() {
        let verdicts = columns.iter().map(|column| (column.suite, column.packages[index].as_ref()));
        let cells: Vec<String> = verdicts
            .map(|(suite, verdict)| match verdict {
                Some(verdict) => cell(suite, package.name, verdict, &mut notes),
                None => "–".to_owned(),
            })
            .collect();
        let _ = writeln!(page, "| {} | {} |", package.name, cells.join(" | "));
    }
    for (number, note) in (1..).zip(&notes) {
        let _ = writeln!(page, "{}{number}. {note}", if number == 1 { "\n## Failures\n\n" } else { "" });
    }
    let _ = writeln!(page, "\n## Left out\n\nThese programs of the same packages do not run here:\n");
    for (names, why) in LEFT_OUT {
        let _ = writeln!(page, "* {names}: {why}.");
    }
    let _ = write!(
        page,
        "\n## By symbols\n\n\
         A build on Debian 12 needs glibc {} and exports {}. For other distributions, the page compares what the build exports with the whole \
         list of symbols of the distribution's rdma-core (`capi/*/releases.txt`), those for its driver libraries too. Nothing of this was run.\n\n\
         | distribution | glibc | rdma-core | the same build |\n|---|---|---|---|\n",
        dotted(needs.glibc),
        needs.newest()
    );
    for other in OTHERS {
        let glibc = other.glibc.map_or_else(|| "musl".to_owned(), dotted);
        let _ = writeln!(page, "| {} | {glibc} | {} | {} |", other.name, other.rdma_core, needs.judge(other)?);
    }
    Ok(page)
}

/// The failures without an explanation, and the explanations of failures that do not occur.
pub(crate) fn unexplained(columns: &[ReleaseColumn]) -> Vec<String> {
    let failures = || columns.iter().flat_map(ReleaseColumn::failures);
    let unexplained = failures().filter(|failure| failure.explained().is_none());
    let told = |failure: Failure| {
        format!("not explained: {}: {}: {}\n{}", failure.column.title, failure.name, failure.why, failure.said)
    };
    let of_these = EXPLAINED.iter().filter(|row| columns.iter().any(|column| column.suite == row.suite));
    let stale = of_these.filter(|row| {
        !failures()
            .any(|failure| (failure.column.suite, failure.name, failure.why) == (row.suite, row.program, row.failure))
    });
    let remove = |row: &programs::Explanation| {
        format!("explained, and does not occur: {}: {}: {}", row.suite, row.program, row.failure)
    };
    unexplained.map(told).chain(stale.map(remove)).collect()
}

/// A failure in the table.
struct Failure<'a> {
    column: &'a ReleaseColumn,
    name: &'static str,
    why: &'a str,
    said: &'a str,
}

impl Failure<'_> {
    fn explained(&self) -> Option<&'static str> {
        programs::explained(self.column.suite, self.name, self.why)
    }
}

impl ReleaseColumn {
    fn failures(&self) -> impl Iterator<Item = Failure<'_>> {
        let programs = ALL.iter().map(|program| program.name).zip(&self.programs);
        let packages = packages::ALL.iter().zip(&self.packages);
        let rows = programs.chain(packages.filter_map(|(package, verdict)| Some((package.name, verdict.as_ref()?))));
        rows.filter_map(|(name, verdict)| match verdict {
            TestResult::Fails { why, said, .. } => Some(Failure { column: self, name, why, said }),
            TestResult::Works(_) => None,
        })
    }
}

/// Returns a cell. A failure refers to a note; failures with the same text share a note.
fn cell(suite: &str, name: &str, verdict: &TestResult, notes: &mut Vec<String>) -> String {
    match verdict {
        TestResult::Works(more) if more.is_empty() => "works".to_owned(),
        TestResult::Works(more) => format!("works: {more}"),
        TestResult::Fails { why, beside, .. } => {
            let explanation = programs::explained(suite, name, why);
            let beside = if beside.is_empty() { String::new() } else { format!("; {beside}") };
            let note = format!("{why}{beside}. {}", explanation.unwrap_or("**Nobody has explained this failure.**"));
            let place = notes.iter().position(|known| *known == note).unwrap_or_else(|| {
                notes.push(note);
                notes.len() - 1
            });
            format!("**fails{}**, {}", if explanation.is_some() { "" } else { ", not explained" }, place + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(why: &str) -> TestResult {
        TestResult::Fails { why: why.to_owned(), beside: String::new(), said: String::new() }
    }

    /// A release in which everything works except some programs.
    fn column(suite: &'static str, failures: &[(&str, &str)]) -> ReleaseColumn {
        let verdict = |name: &str| match failures.iter().find(|(program, _)| *program == name) {
            Some((_, why)) => fails(why),
            None => TestResult::Works(String::new()),
        };
        ReleaseColumn {
            suite,
            title: "Here",
            facts: ["2.36".to_owned(), "44.0".to_owned()],
            programs: ALL.iter().map(|program| verdict(program.name)).collect(),
            packages: packages::ALL.iter().map(|package| Some(verdict(package.name))).collect(),
        }
    }

    #[test]
    fn a_failure_is_told_once_and_wants_an_explanation() {
        let [one, two, three] = [0, 1, 2].map(|index| ALL[index].name);
        let package = packages::ALL[1].name;
        let mut column =
            column("here", &[(one, "no luck"), (two, "no luck"), (three, "no room"), (package, "no room")]);
        column.packages[2] = None;
        let columns = [column];
        let page = written(&columns, &Needs::default()).expect("tables");
        assert_eq!(page.matches("| **fails, not explained**, 1 |").count(), 2, "{page}");
        assert_eq!(page.matches("| **fails, not explained**, 2 |").count(), 2, "{page}");
        assert_eq!(page.matches("2. no room. **Nobody has explained this failure.**\n").count(), 1, "{page}");
        assert_eq!(page.matches("| – |\n").count(), 1, "{page}");
        let told = [(one, "no luck"), (two, "no luck"), (three, "no room"), (package, "no room")];
        let told = told.map(|(name, why)| format!("not explained: Here: {name}: {why}\n"));
        assert_eq!(unexplained(&columns), told);
    }

    #[test]
    fn an_explanation_is_for_one_release_one_program_and_one_failure() {
        let mut suites: Vec<&str> = EXPLAINED.iter().map(|row| row.suite).collect();
        suites.dedup();
        for suite in suites {
            let rows = || EXPLAINED.iter().filter(|row| row.suite == suite);
            let failures: Vec<(&str, &str)> = rows().map(|row| (row.program, row.failure)).collect();
            assert_eq!(unexplained(&[column(suite, &failures)]), [""; 0]);
            assert_eq!(unexplained(&[column("other", &failures)]).len(), failures.len());
            // Another failure of the same program: it has no explanation, and the explanation has
            // no failure.
            let longer: Vec<(&str, String)> =
                rows().map(|row| (row.program, format!("{} twice", row.failure))).collect();
            let longer: Vec<(&str, &str)> = longer.iter().map(|(program, why)| (*program, why.as_str())).collect();
            assert_eq!(unexplained(&[column(suite, &longer)]).len(), 2 * failures.len());
            assert_eq!(unexplained(&[column(suite, &[])]).len(), failures.len());
        }
    }
}
