//! Checks the crates that softhca depends on, with cargo-deny. `deny.toml` has the rules. The
//! principal function is [`check`].

use std::process::Stdio;

use crate::package::tool::Tool;
use crate::workspace::Workspace;

/// How a user gets cargo-deny.
pub(crate) const INSTALL: &str = "cargo-deny is not installed; type: cargo install --locked cargo-deny";

/// The checks that need no list of advisories, so their result depends on the sources alone.
pub(crate) const SOURCES: &[&str] = &["bans", "licenses", "sources"];

/// All checks. cargo-deny downloads the list of advisories.
pub(crate) const ALL: &[&str] = &["bans", "licenses", "sources", "advisories"];

/// Whether cargo-deny is installed.
pub(crate) fn is_installed(workspace: &Workspace) -> bool {
    let asked = workspace.cargo(&["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Makes these checks. The error is what cargo-deny said.
pub(crate) fn check(workspace: &Workspace, checks: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["deny", "--color", "never", "check"];
    Tool::new(cargo).within(workspace.root()).args(words).args(checks).run()
}
