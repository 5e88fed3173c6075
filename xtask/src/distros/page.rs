//! docs/distributions.md: how the programs of each release went, as a table with notes. It decides nothing.

use std::fmt::Write;

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
    pub(crate) verdicts: Vec<Verdict>,
}

const INTRODUCTION: &str = "# Distributions\n\n\
    Which programs of which distribution run on one and the same build. `cargo xtask distros` writes this page: it makes each release with \
    debootstrap, and runs that release's own programs, unmodified, as an ordinary user, with `softhca run`.\n\n";

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
        let cells = columns.iter().map(|column| cell(&column.verdicts[index], &mut notes));
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(page, "| `{}` | {} |", program.name, cells.join(" | "));
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
    let all = columns.iter().flat_map(|column| ALL.iter().zip(&column.verdicts).map(move |row| (column.title, row)));
    let failed = all.filter_map(|(title, (program, verdict))| match verdict {
        Verdict::Fails { why, said } if programs::explained(why).is_none() => {
            Some(format!("{title}: {}: {why}\n{said}", program.name))
        }
        _ => None,
    });
    failed.collect()
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
        let mut verdicts = vec![Verdict::Works(String::new()); ALL.len()];
        verdicts[0] = fails("libibverbs.so.1 has no version `IBVERBS_1.18'");
        verdicts[1] = verdicts[0].clone();
        verdicts[2] = fails("ends with 1: no luck");
        let columns = [Column { title: "Here", facts: ["2.36".to_owned(), "44.0".to_owned()], verdicts }];
        let page = written(&columns, &Needs { glibc: (2, 34), verbs: (1, 14), drivers: true });
        assert_eq!(page.matches("**fails**, 1 |").count(), 2, "{page}");
        assert_eq!(page.matches("2. ends with 1: no luck. Not explained yet.").count(), 1, "{page}");
        assert_eq!(unexplained(&columns), ["Here: ibv_rc_pingpong -g 0 -c: ends with 1: no luck\n"]);
    }
}
