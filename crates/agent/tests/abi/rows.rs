//! The test that docs/abi.md names for a row exists.

use abi::command::{ROWS, Support, rows::REFUSAL_TEST};

const MAIN: &str = include_str!("main.rs");

#[test]
fn every_row_has_its_test() {
    for row in ROWS {
        let name = match row.support {
            Support::Tested(name) => name,
            Support::Refused(_) => REFUSAL_TEST,
        };
        let (module, function) = name.split_once("::").unwrap();
        let path = format!("{}/tests/abi/{module}.rs", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(MAIN.contains(&format!("\nmod {module};\n")), "{}: {module} is no module here", row.name);
        assert!(file.contains(&format!("#[test]\nfn {function}() {{")), "{}: {path} has no test {function}", row.name);
    }
}
