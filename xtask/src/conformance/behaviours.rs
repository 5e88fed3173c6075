//! Reads the behaviours in docs/behaviours.toml, and finds their tests by name in the sources. It
//! does not run the tests. The principal function is [`table`].

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::workspace::Workspace;

/// The folder of the conformance tests. Each of its tests must belong to a behaviour.
const SUITE: &str = "crates/fabric/tests/conformance";
/// Other folders, in which a test belongs to a behaviour if its name says so.
const ELSEWHERE: &[&str] = &[
    "crates/fabric/tests",
    "crates/protocol/tests",
    "crates/agent/tests",
    "crates/iwarp/src",
    "crates/iwarp/tests",
    "suite/tests",
];

#[derive(Deserialize)]
struct BehavioursFile {
    behaviour: Vec<Behaviour>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Behaviour {
    /// The beginning of the tests' names, with dashes.
    id: String,
    /// What programs may rely on.
    says: String,
    /// The source of this promise.
    source: String,
    /// Why there is no test.
    not_here: Option<String>,
}

/// The table of behaviours and tests. The error names behaviours without tests and tests without
/// behaviours.
pub(super) fn table(workspace: &Workspace) -> Result<String, String> {
    let path = workspace.root().join("docs/behaviours.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let BehavioursFile { behaviour: behaviours } =
        toml::from_str(&text).map_err(|error| format!("docs/behaviours.toml: {error}"))?;
    let mut own = Vec::new();
    functions(&workspace.root().join(SUITE), &mut own);
    let mut others = Vec::new();
    ELSEWHERE.iter().for_each(|place| functions(&workspace.root().join(place), &mut others));
    others.retain(|name| !own.contains(name));
    compose(&behaviours, &own, &others)
}

/// Makes the table. `own` are the tests of the conformance suite, `others` are functions in other
/// folders.
fn compose(behaviours: &[Behaviour], own: &[String], others: &[String]) -> Result<String, String> {
    let mut wrong = Vec::new();
    let mut tests: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in own.iter().chain(others) {
        // The longest matching id wins: `state-reset-to-err` before `state-reset`.
        let fits = behaviours.iter().filter(|behaviour| shows(name, &behaviour.id));
        if let Some(behaviour) = fits.max_by_key(|behaviour| behaviour.id.len()) {
            tests.entry(&behaviour.id).or_default().push(name);
        } else if own.contains(name) {
            wrong.push(format!("{name} shows no behaviour of docs/behaviours.toml"));
        }
    }
    let mut text = String::from("| id | what a program may rely on | from | shown by |\n|---|---|---|---|\n");
    for Behaviour { id, says, source, not_here } in behaviours {
        let shown = match (tests.get(id.as_str()), not_here) {
            (Some(tests), None) => tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join(", "),
            (None, Some(why)) => format!("– ({why})"),
            (Some(_), Some(_)) => {
                wrong.push(format!("{id} has a test, and says that it has none"));
                continue;
            }
            (None, None) => {
                wrong.push(format!("{id} has no test: none has a name that begins with {}_", id.replace('-', "_")));
                continue;
            }
        };
        let _ = writeln!(text, "| {id} | {says} | {source} | {shown} |");
    }
    if wrong.is_empty() { Ok(text) } else { Err(wrong.join("\n")) }
}

/// Whether a test's name begins with a behaviour's id.
fn shows(test: &str, id: &str) -> bool {
    test.strip_prefix(&id.replace('-', "_")).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// The names of test functions in the sources of a folder, in order: functions marked as tests, and
/// functions that a macro lists.
fn functions(folder: &Path, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    for path in paths {
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(tests_in(&fs::read_to_string(&path).unwrap_or_default()));
        }
    }
}

fn tests_in(text: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let (mut marked, mut listed) = (false, false);
    for line in text.lines().map(str::trim) {
        if line.ends_with("everywhere! {") || line.ends_with("even_with_losses! {") {
            listed = true;
        } else if line == "}" {
            listed = false;
        } else if listed {
            tests.push(line.to_owned());
        } else if line == "#[test]" {
            marked = true;
        } else if let (true, Some(rest)) = (marked, line.strip_prefix("fn ")) {
            tests.extend(rest.split('(').next().map(str::to_owned));
            marked = false;
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaviour(id: &str, not_here: Option<&str>) -> Behaviour {
        Behaviour {
            id: id.to_owned(),
            says: "it works".to_owned(),
            source: "a page".to_owned(),
            not_here: not_here.map(str::to_owned),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_behaviour_has_the_tests_that_begin_with_its_name() {
        let list = [behaviour("v-1", None), behaviour("v-1-b", None), behaviour("x", Some("no need"))];
        let table =
            compose(&list, &names(&["v_1_b_this", "v_1_that"]), &names(&["v_1_far", "other"])).expect("a table");
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(rows[0], "| v-1 | it works | a page | `v_1_that`, `v_1_far` |");
        assert_eq!(rows[1], "| v-1-b | it works | a page | `v_1_b_this` |");
        assert_eq!(rows[2], "| x | it works | a page | – (no need) |");
    }

    #[test]
    fn behaviours_without_tests_and_tests_without_behaviours_are_errors() {
        let told = compose(&[behaviour("v-1", None)], &names(&["v_10_x"]), &[]).expect_err("two things are wrong");
        assert!(told.contains("v_10_x shows no") && told.contains("v-1 has no test"), "{told}");
        assert!(compose(&[behaviour("v-1", Some("no need"))], &names(&["v_1_x"]), &[]).is_err());
    }

    #[test]
    fn tests_are_marked_or_listed() {
        let text =
            "fn helper() {}\n#[test]\nfn one() {}\nfn two(fabric: &Fabric) {}\ncommon::everywhere! {\n    two\n}\n";
        assert_eq!(tests_in(text), ["one", "two"]);
    }
}
