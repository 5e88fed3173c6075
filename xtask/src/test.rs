//! `cargo xtask test`: everything that must hold. The cheapest checks run first.
//!
//! The release build runs beside the checks and the build of the tests, because link-time
//! optimisation leaves a processor idle. No test runs before all builds have ended.
//!
//! Two runs at the same time are safe: cargo locks its own folder, `dist` replaces its folder in
//! one step, and each test of the integration suite has its own run directory and ports. The
//! principal function is [`run`].

use std::process::{Command, Stdio};

use harness::Dist;

use crate::hugepages::HugePages;
use crate::report::Report;
use crate::slowest::slowest;
use crate::step::Count;
use crate::workspace::Workspace;
use crate::{abi_check, abi_doc, conformance, debian, deny, dist, distros, planted, step, tidy};

/// Runs all steps. The last line on standard output is "N passed, N failed".
pub(crate) fn run(workspace: &Workspace, quick: bool) -> Result<(), String> {
    let mut report = Report::new();
    let junit = ["default", "suite"].map(|profile| workspace.target().join("nextest").join(profile).join("junit.xml"));
    for file in &junit {
        // A file of an earlier run would list tests that did not run now.
        let _ = std::fs::remove_file(file);
    }
    let cargo = |words: &[&str]| step::run(workspace.cargo(words));
    let release = dist::Build::start(workspace);
    report.step("formatting", || cargo(&["fmt", "--all", "--check"]));
    report.check("tidy", || tidy::run(workspace, false));
    report.check("docs/abi.md is what the tables say", || abi_doc::run(workspace, true));
    report.check("docs/conformance.md names every behaviour's test", || conformance::check(workspace));
    report.check("every bug of xtask/planted.toml can be planted", || planted::check(workspace));
    dependencies(&mut report, workspace);
    report.step("clippy", || cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]));
    report.step("build of the tests", || step::run(tests(workspace, Tests::OnlyBuild)));
    report.step("loom models", || step::run(loom(workspace)));
    let mut laid_out = Err("not built".to_owned());
    report.check("dist", || {
        laid_out = release.and_then(|release| release.finish(workspace));
        laid_out.as_ref().map(|_| ()).map_err(Clone::clone)
    });
    if let Ok(dist) = &laid_out {
        report.check("exported symbols", || {
            abi_check::run(workspace, Some(dist.library()), false)?;
            abi_check::run(workspace, Some(dist.rdmacm()), false)?;
            abi_check::run(workspace, Some(dist.redirector()), false)?;
            abi_check::run(workspace, Some(dist.shared_memory()), false)
        });
    }
    report.step("unit tests", || step::run(tests(workspace, Tests::Unit)));
    report.step("doc tests", || cargo(&["test", "--quiet", "--workspace", "--doc"]));
    if !quick {
        let mut ready = Ok(());
        report.check("Debian programs are there", || {
            ready = debian::require(debian::SUITE);
            ready.clone()
        });
        if let (Ok(()), Ok(dist)) = (ready, &laid_out) {
            let _pages = HugePages::reserve();
            report.step("integration suite", || {
                let mut command = tests(workspace, Tests::Suite);
                command.env("SOFTHCA_DIST", dist.folder());
                step::run(command)
            });
            other_release(&mut report, dist);
        }
    }
    report.name_slowest(slowest(&junit, 10));
    report.close()
}

/// Whether this is continuous integration, where no step may be left out.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Checks the crates that softhca depends on. Without cargo-deny the step is left out.
fn dependencies(report: &mut Report, workspace: &Workspace) {
    const NAME: &str = "licences, versions and sources of dependencies";
    if is_ci() || deny::is_installed(workspace) {
        report.check(NAME, || deny::check(workspace, deny::SOURCES));
    } else {
        report.leave_out(NAME, deny::INSTALL);
    }
}

/// Tests with another Debian release. They are left out on machines that cannot have the release.
/// In continuous integration they must run.
fn other_release(report: &mut Report, dist: &Dist) {
    const NAME: &str = "programs of another Debian release";
    let mut left_out = None;
    report.step(NAME, || match distros::short(dist) {
        Ok(None) => Count { passed: 1, failed: 0 },
        Ok(Some(why)) if !is_ci() => {
            left_out = Some(why);
            Count::default()
        }
        Ok(Some(why)) | Err(why) => {
            eprintln!("{why}");
            Count { passed: 0, failed: 1 }
        }
    });
    if let Some(why) = left_out {
        report.leave_out(NAME, &why);
    }
}

/// Which tests to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tests {
    /// None: they are built.
    OnlyBuild,
    /// All but the integration suite.
    Unit,
    /// The integration suite.
    Suite,
}

/// The test runner: cargo-nextest if it is installed (one process for each test, limits for hangs),
/// otherwise cargo's own. Of the suite, several tests run at once, except for those to which
/// `.config/nextest.toml` gives the machine; with cargo's own runner, they run one at a time.
fn tests(workspace: &Workspace, which: Tests) -> Command {
    let nextest = workspace.cargo(&["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let mut command = if nextest.is_ok_and(|status| status.success()) {
        // Always the whole workspace: for a part of it, cargo would build some crates once more,
        // with fewer features.
        let mut command = workspace.cargo(&["nextest", "run", "--workspace"]);
        let words: &[&str] = match which {
            Tests::OnlyBuild => &["--no-run", "--cargo-quiet"],
            Tests::Unit => {
                &["--no-fail-fast", "--filterset=not package(softhca-suite)", "--test-threads=3", "--status-level=slow"]
            }
            Tests::Suite => {
                &["--no-fail-fast", "--filterset=package(softhca-suite)", "--profile=suite", "--status-level=pass"]
            }
        };
        command.args(words);
        command
    } else {
        let mut command = workspace.cargo(&["test", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        match which {
            Tests::OnlyBuild => command.args(["--workspace", "--no-run"]),
            Tests::Unit => command.args(["--workspace", "--exclude", "softhca-suite"]),
            Tests::Suite => command.args(["--package", "softhca-suite", "--", "--test-threads", "1"]),
        };
        command
    };
    command.env("RUST_BACKTRACE", "0");
    command
}

/// The loom models of the rings and of the wake word. They need another configuration, so they are
/// built in another folder. They explore schedules of a few functions, for which link-time
/// optimisation takes longer than it saves.
fn loom(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo(&["test", "--release", "--package", "softhca-shm", "--lib", "loom"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", workspace.target().join("loom"));
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command
}
