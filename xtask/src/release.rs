//! `cargo xtask release`: the steps of a release that can be undone. It checks, makes the packages
//! and the crates, and prints the commands that a person runs next. It sets no tag, and pushes and
//! uploads nothing. `--repository` does one step before the first release: see [`repository`].

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::deny;
use crate::package;
use crate::package::tool::Tool;
use crate::workspace::{Package, Workspace};

const CHANGELOG: &str = "CHANGELOG.md";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Write this address of the source into Cargo.toml and into each crate that is published, and
    /// do nothing else: needed once, before the first release
    #[arg(long, value_name = "URL")]
    repository: Option<String>,
}

/// Does one of the two things that the options ask for.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    match &options.repository {
        Some(address) => repository(workspace, address),
        None => prepare(workspace),
    }
}

/// Checks, makes the packages and prints the next steps.
fn prepare(workspace: &Workspace) -> Result<(), String> {
    let version = workspace.version()?;
    let tag = format!("v{version}");
    let git = |words: &[&str]| Tool::new("git").within(workspace.root()).args(words).output();
    let changed = git(&["status", "--porcelain"])?;
    if !changed.is_empty() {
        return Err(format!("the working tree has changes; commit or remove them first:\n{}", changed.trim_end()));
    }
    if !git(&["tag", "--list", &tag])?.is_empty() {
        return Err(format!("the tag {tag} exists; set another version in Cargo.toml"));
    }
    let changelog =
        fs::read_to_string(workspace.root().join(CHANGELOG)).map_err(|error| format!("{CHANGELOG}: {error}"))?;
    section(&changelog, version)?;
    let order = order(workspace.packages())?;
    if let Some(package) = published(workspace).find(|package| package.repository.is_none()) {
        return Err(format!(
            "{} names no repository, so its page on crates.io would not link to the source; \
             fix: cargo xtask release --repository URL",
            package.name
        ));
    }
    if !deny::is_installed(workspace) {
        return Err(deny::INSTALL.to_owned());
    }
    deny::check(workspace, deny::ALL)?;
    oldest_rust(workspace)?;
    println!("{}", try_crates(workspace, &order)?);
    package::run(workspace, &package::Options::default())?;
    println!("\n{}", steps(&tag, &order));
    Ok(())
}

/// The packages for crates.io.
fn published(workspace: &Workspace) -> impl Iterator<Item = &Package> {
    workspace.packages().iter().filter(|package| is_published(package))
}

fn is_published(package: &Package) -> bool {
    package.publish.as_deref() != Some(&[])
}

/// Writes the address of the source into the manifests. They have none at first, because the
/// publisher chooses it.
fn repository(workspace: &Workspace, address: &str) -> Result<(), String> {
    if !["https://", "http://"].iter().any(|scheme| address.starts_with(scheme)) || address.contains(['"', ' ', '\\']) {
        return Err(format!("`{address}` is not an address that crates.io accepts; it begins with https://"));
    }
    let root = workspace.root().join("Cargo.toml");
    edit(&root, |text| set(text, "license", &format!("repository = \"{address}\"")))?;
    for package in published(workspace) {
        edit(&package.manifest_path, |text| set(text, "documentation", "repository.workspace = true"))?;
    }
    println!("wrote {address} into the manifests; commit them, and type: cargo xtask release");
    Ok(())
}

fn edit(path: &Path, change: impl FnOnce(&str) -> Option<String>) -> Result<(), String> {
    let told = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = fs::read_to_string(path).map_err(|error| told(&error))?;
    let text = change(&text).ok_or_else(|| told(&"it has no line to put the repository behind"))?;
    fs::write(path, text).map_err(|error| told(&error))
}

/// The manifest with this line for the repository: in place of the line that it has, or behind the
/// first line that sets `before`. None if no line does.
fn set(manifest: &str, before: &str, line: &str) -> Option<String> {
    let sets = |text: &str, key: &str| text.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', '=', '.']));
    let mut lines: Vec<&str> = manifest.lines().filter(|text| !sets(text, "repository")).collect();
    let place = lines.iter().position(|text| sets(text, before))?;
    lines.insert(place + 1, line);
    Some(lines.join("\n") + "\n")
}

/// Builds the crates with the oldest Rust version that they promise, if this machine has it.
fn oldest_rust(workspace: &Workspace) -> Result<(), String> {
    let oldest = workspace.oldest_rust()?;
    let list = Tool::new("rustup").args(["toolchain", "list"]).output().unwrap_or_default();
    let check = |tool: Tool| {
        let tool = tool.within(workspace.root());
        tool.args(["check", "--workspace", "--all-targets", "--locked", "--offline"]).run()
    };
    let cargo = || Tool::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if is_version(&cargo().args(["--version"]).output()?, oldest) {
        check(cargo())?;
    } else if let Some(toolchain) = installed(&list, oldest) {
        // In a separate folder, because the two compilers would rebuild each other's output.
        let target = workspace.target().join("oldest-rust");
        check(Tool::new("rustup").env("CARGO_TARGET_DIR", &target).args(["run", &toolchain, "cargo"]))?;
    } else {
        println!("not checked: Rust {oldest} is not installed; type: rustup toolchain install {oldest}");
        return Ok(());
    }
    println!("all packages build with Rust {oldest}");
    Ok(())
}

/// Whether `cargo --version` names this version.
fn is_version(said: &str, version: &str) -> bool {
    let rest = said.strip_prefix("cargo ").and_then(|rest| rest.strip_prefix(version));
    rest.is_some_and(|rest| rest.starts_with(['.', ' ']))
}

/// The name of the toolchain with this version in `rustup toolchain list`.
fn installed(list: &str, version: &str) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let mut of_version = names.filter(|name| {
        let rest = name.strip_prefix(version);
        // 1.90.0-x86_64-… counts as 1.90.
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
    });
    of_version.next().map(str::to_owned)
}

/// Does a dry run of uploading these crates; returns a summary.
///
/// Packs each crate and builds it from its own file. It is one command for all crates, because
/// cargo then takes unpublished dependencies from the files of the earlier crates.
fn try_crates(workspace: &Workspace, order: &[&str]) -> Result<String, String> {
    let cargo = |words: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let tool = Tool::new(cargo).within(workspace.root()).args(words);
        tool.args(order.iter().flat_map(|name| ["--package", name])).run()
    };
    // First without the registry, which is enough to refuse a wrong crate.
    cargo(&["package", "--offline"])?;
    match cargo(&["publish", "--dry-run", "--no-verify"]) {
        Ok(()) => Ok(format!("cargo publish --dry-run succeeds for {}", order.join(", "))),
        Err(why) if is_unreachable(&why) => Ok(format!(
            "cargo package succeeds for {}; not checked: cargo publish --dry-run, because the registry cannot be reached",
            order.join(", ")
        )),
        Err(why) => Err(why),
    }
}

/// Whether cargo failed because it has no connection to the registry.
fn is_unreachable(why: &str) -> bool {
    ["Could not resolve host", "failed to download from `https", "Could not connect", "Timeout was reached"]
        .iter()
        .any(|words| why.to_lowercase().contains(&words.to_lowercase()))
}

/// Checks that the changelog has a dated section with entries for the version, and no entries
/// without a version.
fn section(changelog: &str, version: &str) -> Result<(), String> {
    let text = |heading: &str| {
        let rest = changelog.split_once(&format!("\n## [{heading}]"))?.1;
        Some(rest.split("\n## ").next().unwrap_or(rest))
    };
    let released = text(version).ok_or_else(|| format!("{CHANGELOG} has no section \"## [{version}] - DATE\""))?;
    let (date, entries) = released.split_once('\n').unwrap_or((released, ""));
    if !is_date(date.trim_start_matches([' ', '-']).trim_end()) {
        return Err(format!("{CHANGELOG}: the heading of {version} must be \"## [{version}] - YYYY-MM-DD\""));
    }
    if !entries.lines().any(|line| line.starts_with("* ")) {
        return Err(format!("{CHANGELOG}: the section of {version} has no entry"));
    }
    if text("Unreleased").is_some_and(|rest| rest.lines().any(|line| line.starts_with("* "))) {
        return Err(format!("{CHANGELOG}: move what is under \"Unreleased\" to the section of {version}"));
    }
    Ok(())
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([4, 2, 2]) && parts.iter().all(digits)
}

/// The crates for crates.io, each after its dependencies.
fn order(packages: &[Package]) -> Result<Vec<&str>, String> {
    let mut left: Vec<&Package> = packages.iter().filter(|package| is_published(package)).collect();
    let own: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut order: Vec<&str> = Vec::new();
    while !left.is_empty() {
        let ready = |package: &Package| {
            let mut needs = package.dependencies.iter().filter(|dependency| dependency.is_published());
            needs.all(|dependency| !own.contains(dependency.name.as_str()) || order.contains(&dependency.name.as_str()))
        };
        let (now, later): (Vec<&Package>, Vec<&Package>) = left.into_iter().partition(|package| ready(package));
        if now.is_empty() {
            let names: Vec<&str> = later.iter().map(|package| package.name.as_str()).collect();
            return Err(format!(
                "these depend on each other, or on a crate with publish = false: {}",
                names.join(", ")
            ));
        }
        order.extend(now.iter().map(|package| package.name.as_str()));
        left = later;
    }
    Ok(order)
}

/// The next steps for a person.
fn steps(tag: &str, order: &[&str]) -> String {
    let packages = order.iter().map(|name| format!(" -p {name}")).collect::<String>();
    format!(
        "What remains:\n  git tag --annotate {tag} --message 'softhca {tag}'\n  git push origin {tag}\n  \
         upload the packages above to the release {tag}\n  cargo publish{packages}"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{installed, is_unreachable, is_version, order, published, section, set};
    use crate::workspace::Workspace;

    const GOOD: &str = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-31\n\n### Added\n\n* a thing\n\n## [0.1.0] - 2025-01-31\n\n* all\n";

    #[test]
    fn a_dated_section_with_entries_is_a_release() {
        section(GOOD, "0.2.0").expect("complete");
        section(GOOD, "0.1.0").expect("complete");
    }

    #[test]
    fn an_incomplete_changelog_is_refused() {
        for (text, expected) in [
            (GOOD.replace("[0.2.0]", "[0.2.1]"), "has no section"),
            (GOOD.replace("2026-01-31", "soon"), "YYYY-MM-DD"),
            (GOOD.replace("* a thing\n", ""), "has no entry"),
            (GOOD.replace("[Unreleased]\n", "[Unreleased]\n\n* a late thing\n"), "Unreleased"),
        ] {
            let why = section(&text, "0.2.0").expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn the_toolchain_of_a_version_is_found() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\n1.9.0-x86_64-unknown-linux-gnu\n1.90.0-x86_64-unknown-linux-gnu\n";
        assert_eq!(installed(list, "1.90").as_deref(), Some("1.90.0-x86_64-unknown-linux-gnu"));
        assert_eq!(
            installed("1.90-x86_64-unknown-linux-gnu\n", "1.90").as_deref(),
            Some("1.90-x86_64-unknown-linux-gnu")
        );
        assert_eq!((installed(list, "1.91"), installed("", "1.90")), (None, None));
        let said = "cargo 1.95.0 (f2d3ce0bd 2026-03-21)\n";
        assert!(is_version(said, "1.95") && is_version(said, "1.95.0"));
        assert!(!is_version(said, "1.9") && !is_version(said, "1.96") && !is_version("", "1.95"));
    }

    #[test]
    fn every_page_names_the_oldest_rust_of_the_workspace() {
        let workspace = Workspace::open().expect("the workspace");
        let oldest = format!("Rust {}", workspace.oldest_rust().expect("a version"));
        for page in ["README.md", "docs/install.md", ".ci/run"] {
            let text = fs::read_to_string(workspace.root().join(page)).expect(page);
            let named: Vec<&str> = text.matches("Rust 1.").collect();
            assert!(!named.is_empty() && named.len() == text.matches(&oldest).count(), "{page} does not say {oldest}");
        }
    }

    #[test]
    fn the_repository_takes_its_line_once() {
        let manifest = "[workspace]\n\n[workspace.package]\nlicense = \"MIT\"\nreadme = \"README.md\"\n";
        let first = set(manifest, "license", "repository = \"https://one\"").expect("it has a licence");
        assert_eq!(
            first,
            "[workspace]\n\n[workspace.package]\nlicense = \"MIT\"\nrepository = \"https://one\"\nreadme = \"README.md\"\n"
        );
        let second = set(&first, "license", "repository = \"https://two\"").expect("it has a licence");
        assert_eq!(second, first.replace("one", "two"));
        assert_eq!(set("[package]\n", "documentation", "repository.workspace = true"), None);
    }

    #[test]
    fn every_published_crate_has_a_line_to_put_the_repository_behind() {
        let workspace = Workspace::open().expect("the workspace");
        assert!(published(&workspace).count() > 10);
        for package in published(&workspace) {
            let manifest = fs::read_to_string(&package.manifest_path).expect("a manifest");
            let changed = set(&manifest, "documentation", "repository.workspace = true");
            assert!(changed.is_some_and(|text| text.matches("repository").count() == 1), "{}", package.name);
        }
    }

    #[test]
    fn only_a_registry_without_connection_leaves_the_dry_run_out() {
        assert!(is_unreachable("error: failed to update registry\nCaused by:\n  [6] Could not resolve hostname"));
        assert!(!is_unreachable("error: 1 files in the working directory contain changes"));
    }

    #[test]
    fn every_published_crate_comes_behind_those_that_it_needs() {
        let workspace = Workspace::open().expect("the workspace");
        let order = order(workspace.packages()).expect("an order");
        let place = |name: &str| order.iter().position(|crate_| *crate_ == name);
        assert!(
            place("softhca-wire") < place("softhca-engine") && place("softhca-engine") < place("softhca"),
            "{order:?}"
        );
        assert!(place("softhca") < place("softhca-fabric") && place("softhca-fabric").is_some(), "{order:?}");
        assert!(place("libibverbs").is_none() && place("xtask").is_none(), "{order:?}");
    }
}
