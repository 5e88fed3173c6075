//! `cargo xtask abi-doc`: writes docs/abi.md from the tables of `crates/abi`, so that the page
//! matches the code.

use std::fs;

use crate::workspace::Workspace;

/// Writes the page. With `check`, compares it instead.
pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<(), String> {
    let page = workspace.root().join("docs/abi.md");
    let text = abi::document();
    if !check {
        return fs::write(&page, text).map_err(|error| format!("{}: {error}", page.display()));
    }
    if fs::read_to_string(&page).is_ok_and(|old| old == text) {
        Ok(())
    } else {
        Err("docs/abi.md differs from the command tables: run `cargo xtask abi-doc`".to_owned())
    }
}
