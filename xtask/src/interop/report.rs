//! The results of the cases: lines during the run, a table for docs/interop.md, and JSON. The
//! principal type is [`InteropReport`].

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::Driver;
use super::cases::Case;
use super::side::Serves;
use super::terminates;

/// The result of one direction of a case.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Cell {
    /// A note for the table may follow.
    Good(String),
    /// What went wrong.
    Failed(String),
    /// Nothing was run.
    Impossible,
}

/// One case in both directions.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    what: String,
    here_serves: Cell,
    peer_serves: Cell,
}

/// The results of all cases.
#[derive(Debug, Serialize)]
pub(super) struct InteropReport {
    pub(super) kernel: String,
    lines: Vec<Line>,
    #[serde(skip)]
    driver: Driver,
}

/// The mark behind a table.
const END: &str = "<!-- to here -->\n";

impl Line {
    /// `None`: the direction is not possible.
    pub(super) fn new(case: &Case, results: [Option<Result<(), String>>; 2]) -> Line {
        let mut cells = Serves::ALL.into_iter().zip(results).map(|(serves, result)| match result {
            Some(Ok(())) => Cell::Good(case.note(serves)),
            Some(Err(why)) => Cell::Failed(why),
            None => Cell::Impossible,
        });
        let mut next = || cells.next().unwrap_or(Cell::Impossible);
        Line { what: case.title(), here_serves: next(), peer_serves: next() }
    }

    fn count(&self, is: impl Fn(&Cell) -> bool) -> usize {
        [&self.here_serves, &self.peer_serves].into_iter().filter(|cell| is(cell)).count()
    }
}

impl Cell {
    /// In the table. The reasons are in the JSON only, because they name folders and processes of
    /// one machine.
    fn in_table(&self) -> String {
        match self {
            Cell::Good(note) => format!("good{note}"),
            Cell::Failed(_) => "**failed**".to_owned(),
            Cell::Impossible => "–".to_owned(),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Good(note) => write!(f, "good{note}"),
            Cell::Failed(why) => write!(f, "FAILED ({why})"),
            Cell::Impossible => f.write_str("not possible"),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, here_serves, peer_serves } = self;
        write!(f, "{what:50} we serve: {here_serves}, we ask: {peer_serves}")
    }
}

impl InteropReport {
    pub(super) fn new(driver: Driver) -> InteropReport {
        InteropReport { kernel: String::new(), lines: Vec::new(), driver }
    }

    /// The mark before the driver's table.
    fn begin(&self) -> &'static str {
        match self.driver {
            Driver::Rxe => "<!-- cargo xtask interop --write: from here -->\n",
            Driver::Siw => "<!-- cargo xtask interop --siw --write: from here -->\n",
        }
    }

    pub(super) fn add(&mut self, line: Line) {
        self.lines.push(line);
    }

    pub(super) fn json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|error| error.to_string())
    }

    /// The table, in the order of the cases. A case that did not run keeps its row of the last
    /// table.
    fn table(&self, last: &str) -> String {
        let mut table =
            format!("The other side: {}.\n\n| Program | softhca serves | softhca asks |\n|---|---|---|\n", self.kernel);
        for title in self.driver.cases().iter().map(Case::title) {
            let begin = format!("| `{title}` |");
            let kept = last.lines().find(|row| row.starts_with(&begin)).map(str::to_owned);
            let run = self.lines.iter().find(|line| line.what == title);
            let cells = |line: &Line| format!("{} | {}", line.here_serves.in_table(), line.peer_serves.in_table());
            let new = run.map(|line| format!("{begin} {} |", cells(line)));
            if let Some(row) = new.or(kept) {
                table += &row;
                table.push('\n');
            }
        }
        if self.driver == Driver::Siw {
            table += &terminates::others();
        }
        table
    }

    /// Replaces the table in a document.
    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(told)?;
        let parts = text.split_once(self.begin()).and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
        let (before, (last, after)) = parts.ok_or_else(|| format!("{}: no place for a table", path.display()))?;
        fs::write(path, format!("{before}{}{}{END}{after}", self.begin(), self.table(last))).map_err(told)
    }

    /// An error if any case failed, or if no case ran.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let count = |is: fn(&Cell) -> bool| self.lines.iter().map(|line| line.count(is)).sum::<usize>();
        let (good, failed) =
            (count(|cell| matches!(cell, Cell::Good(_))), count(|cell| matches!(cell, Cell::Failed(_))));
        println!("{good} passed, {failed} failed");
        match (self.lines.len(), failed) {
            (0, _) => Err("no case was run".to_owned()),
            (_, 0) => Ok(()),
            _ => Err(format!("{failed} cases failed against {}", self.kernel)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_last_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("interop.md");
        let mut report = InteropReport::new(Driver::Rxe);
        let begin = report.begin();
        fs::write(&path, format!("before\n{begin}old\n{END}after\n")).expect("written");
        assert!(report.verdict().is_err(), "nothing was run");
        report.add(Line::new(&Driver::Rxe.cases()[0], [Some(Ok(())), Some(Err("why".to_owned()))]));
        assert!(report.verdict().is_err());
        for _ in 0..2 {
            report.write(&path).expect("written");
            let text = fs::read_to_string(&path).expect("read");
            assert!(text.starts_with("before\n") && text.ends_with("after\n") && !text.contains("old"), "{text}");
            assert!(text.contains("| `everyopcode` | good | **failed** |\n"), "{text}");
        }
        let mut other = InteropReport::new(Driver::Rxe);
        other.add(Line::new(&Driver::Rxe.cases()[1], [Some(Ok(())), None]));
        other.write(&path).expect("written");
        let text = fs::read_to_string(&path).expect("read");
        assert!(
            text.contains("good | **failed** |\n| `everyopcode, IPv6` | good | – |\n"),
            "what was not run is kept: {text}"
        );
        fs::write(&path, "nothing").expect("written");
        assert!(report.write(&path).is_err());
    }
}
