//! `cargo xtask distros`: runs the programs of each Debian release on one build, and writes the
//! results to docs/distributions.md.
//!
//! It makes the releases with debootstrap ([`root`]), runs the list of [`programs`] in each of them
//! ([`session`]), installs the [`packages`] there, and writes the tables ([`page`]). A failure
//! without an entry in [`programs::EXPLAINED`] is an error, and so is an entry for a failure that
//! does not occur. [`short`] is the part that `cargo xtask test` runs. Other distributions are only
//! compared with the symbols of the build ([`symbols`]).

mod packages;
mod page;
mod programs;
mod root;
mod session;
mod symbols;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use harness::Dist;

use crate::hugepages::HugePages;
use crate::workspace::Workspace;
use crate::{debian, dist};
use packages::BuiltPackages;
use page::ReleaseColumn;
use root::{Release, Roots};
use session::TestResult;

/// The command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder for the releases [default: softhca/roots in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    roots: Option<PathBuf>,
    /// The Debian archive to make them from [default: the archive of this machine's apt]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// A dist of softhca [default: a new one is built]
    #[arg(long, value_name = "FOLDER")]
    dist: Option<PathBuf>,
    /// Make the releases again from the current archive
    #[arg(long)]
    fresh: bool,
    /// Only these releases (bookworm, trixie, sid); print the page instead of writing it
    #[arg(long, value_name = "RELEASE", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs everything and writes the page.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let releases: Vec<&Release> =
        root::RELEASES.iter().filter(|release| wanted(&options.only, release.suite)).collect();
    if releases.is_empty() {
        return Err(format!("--only: the releases are {}", root::RELEASES.map(|release| release.suite).join(", ")));
    }
    debian::require(debian::DISTROS)?;
    let _huge_pages = HugePages::reserve(); // some tests of pyverbs skip themselves without
    let roots = Roots::new(options.roots.clone(), options.mirror.clone())?;
    let dist = match &options.dist {
        Some(folder) => Dist::at(std::path::absolute(folder).map_err(|error| error.to_string())?),
        None => dist::run(workspace)?,
    };
    let packages = BuiltPackages::make(workspace, &dist, roots.folder())?;
    let columns: Vec<ReleaseColumn> = releases
        .iter()
        .map(|release| {
            let root = roots.ready(release, root::EVERYTHING, options.fresh)?;
            let tried = |package: &packages::PackageTest| {
                let began = Instant::now();
                packages.run(package, release, &root).inspect(|verdict| tell(release, package.name, verdict, began))
            };
            Ok(ReleaseColumn {
                suite: release.suite,
                title: release.title,
                facts: root::facts(&root),
                packages: packages::ALL.iter().map(tried).collect(),
                programs: programs::ALL.iter().map(|program| judged(program, release, &root, &dist)).collect(),
            })
        })
        .collect::<Result<_, String>>()?;
    let page = page::written(&columns, &symbols::Needs::of(workspace, &dist)?)?;
    if options.only.is_empty() {
        fs::write(workspace.root().join("docs/distributions.md"), page).map_err(|error| error.to_string())?;
    } else {
        print!("{page}");
    }
    let unexplained = page::unexplained(&columns);
    if unexplained.is_empty() { Ok(()) } else { Err(unexplained.join("\n")) }
}

/// Runs a few programs of the newest stable release, for `cargo xtask test`. `Ok(Some)` says why
/// this machine cannot run them.
pub(crate) fn short(dist: &Dist) -> Result<Option<String>, String> {
    if let Err(why) = debian::require(debian::DISTROS) {
        return Ok(Some(why));
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(Some("only root can make and enter another release".to_owned()));
    }
    let roots = Roots::new(None, None)?;
    let root = match roots.ready(&root::STABLE, root::FEW, false) {
        Err(why) if !roots.can_reach_mirror() => return Ok(Some(format!("the archive cannot be reached: {why}"))),
        ready => ready?,
    };
    let few = programs::ALL.iter().filter(|program| program.is_short);
    let failed: Vec<String> = few
        .filter_map(|program| match judged(program, &root::STABLE, &root, dist) {
            TestResult::Works(_) => None,
            TestResult::Fails { why, said, .. } => Some(format!("{}: {why}\n{said}", program.name)),
        })
        .collect();
    if failed.is_empty() { Ok(None) } else { Err(failed.join("\n")) }
}

fn wanted(only: &[String], suite: &str) -> bool {
    only.is_empty() || only.iter().any(|name| name == suite)
}

fn judged(program: &programs::Program, release: &Release, root: &Path, dist: &Dist) -> TestResult {
    let began = Instant::now();
    let verdict = session::run(program, root, dist);
    tell(release, program.name, &verdict, began);
    verdict
}

fn tell(release: &Release, name: &str, verdict: &TestResult, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    let (word, why) = match verdict {
        TestResult::Works(_) => ("works", ""),
        TestResult::Fails { why, .. } => ("FAILS", why.as_str()),
    };
    println!("{:<10} {name:<46} {word} {seconds:>8.1} s  {why}", release.suite);
}
