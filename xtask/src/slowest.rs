//! The slowest tests of a run, from the JUnit files that cargo-nextest writes.
//!
//! It reads one attribute list per line and is not an XML parser. nextest escapes quotes in
//! attributes. The principal function is [`slowest`].

use std::fs;
use std::path::PathBuf;

/// The duration of a test, and its name: the binary and the path of the function.
pub(crate) type Took = (f64, String);

/// The `count` slowest tests, the slowest first. A missing file counts as empty.
pub(crate) fn slowest(files: &[PathBuf], count: usize) -> Vec<Took> {
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let mut tests: Vec<Took> = texts.flat_map(|text| text.lines().filter_map(test).collect::<Vec<_>>()).collect();
    tests.sort_by(|a, b| b.0.total_cmp(&a.0));
    tests.truncate(count);
    tests
}

/// The test in a `<testcase>` line.
fn test(line: &str) -> Option<Took> {
    let attributes = line.trim_start().strip_prefix("<testcase ")?;
    let value = |name: &str| {
        let rest = attributes.split_once(&format!("{name}=\""))?.1;
        Some(rest.split_once('"')?.0)
    };
    // A search for "name" could also find "classname". It does not, because "name" comes first.
    let took = value(" time")?.parse().ok()?;
    Some((took, format!("{} {}", value("classname")?, value("name")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="0" errors="0" time="9.9">
    <testsuite name="softhca-agent::life" tests="2" failures="0">
        <testcase name="ends" classname="softhca-agent::life" timestamp="2026-01-01T00:00:00.000+00:00" time="0.250">
        </testcase>
        <testcase name="mod::starts" classname="softhca-agent::life" timestamp="2026-01-01T00:00:00.000+00:00" time="3.5"/>
        <testcase name="waits" classname="softhca-agent::life" timestamp="2026-01-01T00:00:00.000+00:00" time="1.0"/>
"#;

    #[test]
    fn the_longest_tests_come_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("junit.xml");
        fs::write(&file, FILE).expect("a file");
        let files = [file, folder.path().join("missing.xml")];
        let expected = [(3.5, "softhca-agent::life mod::starts"), (1.0, "softhca-agent::life waits")];
        assert_eq!(slowest(&files, 2), expected.map(|(took, name)| (took, name.to_owned())));
    }
}
