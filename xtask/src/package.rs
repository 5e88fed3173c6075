//! `cargo xtask package`: makes the packages that users install, from the folder of `cargo xtask
//! dist`.
//!
//! The results are in `target/package`: a tarball, a tarball of debug symbols, a Debian package,
//! and on request an OCI image. The tarballs and the Debian package are reproducible: equal input
//! and equal tools give equal bytes. [`tree`] makes the files. The other modules have one format
//! each. The principal type is [`BuildInfo`].

mod archive;
mod deb;
mod image;
mod needs;
pub(crate) mod tool;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use harness::Dist;

use crate::dist;
use crate::workspace::Workspace;
use tool::Tool;
use tree::Tree;

/// The options.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// A laid out softhca to package; without it, a fresh one is built
    #[arg(long, value_name = "FOLDER")]
    dist: Option<PathBuf>,
    /// Where the packages go; without it, target/package
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Make an OCI image too; this needs mmdebstrap and a Debian mirror
    #[arg(long)]
    image: bool,
}

/// The paths of the packages.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) tarball: PathBuf,
    /// The debug symbols.
    pub(crate) debug: PathBuf,
    pub(crate) deb: PathBuf,
    /// The OCI image, if the options ask for it.
    pub(crate) image: Option<PathBuf>,
}

/// What all packages of one run have in common.
#[derive(Debug)]
struct BuildInfo {
    version: String,
    /// Seconds since 1970: the time of every file in a package.
    time: u64,
    /// Name and address of the maintainer in the Debian package.
    maintainer: String,
}

/// Makes the packages and prints their paths.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let dist = match &options.dist {
        Some(folder) => Dist::at(absolute(folder)?),
        None => dist::run(workspace)?,
    };
    let out = options.out.clone().unwrap_or_else(|| workspace.target().join("package"));
    fs::create_dir_all(&out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    let out = absolute(&out)?;
    let made = make(workspace, &dist, &out, options.image)?;
    for path in [&made.tarball, &made.debug, &made.deb].into_iter().chain(&made.image) {
        println!("{}", path.display());
    }
    Ok(())
}

/// Makes a path absolute, because the tools run in other folders.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes the packages in a folder, given by its absolute path.
pub(crate) fn make(workspace: &Workspace, dist: &Dist, out: &Path, image: bool) -> Result<Made, String> {
    let release = BuildInfo::of(workspace)?;
    let scratch =
        tempfile::tempdir_in(out).map_err(|error| format!("cannot create a folder in {}: {error}", out.display()))?;
    let tree = Tree::lay_out(workspace, &release, dist, &scratch.path().join("tree"))?;
    let tarball = archive::pack(&release, &tree.root(), &release.name(""), out)?;
    let debug = archive::pack(&release, &tree.debug(), &release.name("-debug"), out)?;
    let deb = deb::build(workspace, &release, &tree, &scratch.path().join("deb"), out)?;
    let image = image.then(|| image::build(&release, &deb, scratch.path(), out)).transpose()?;
    Ok(Made { tarball, debug, deb, image })
}

impl BuildInfo {
    fn of(workspace: &Workspace) -> Result<Self, String> {
        let git = |format: &str| {
            Tool::new("git").within(workspace.root()).args(["log", "-1", &format!("--format={format}")]).output()
        };
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => git("%ct")?,
        };
        let time = time.trim().parse().map_err(|_| format!("SOURCE_DATE_EPOCH must be seconds, but is {time:?}"))?;
        // Debian's own tools read these two variables.
        let maintainer = match (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
            (Ok(name), Ok(address)) => format!("{name} <{address}>"),
            _ => git("%cn <%ce>")?.trim().to_owned(),
        };
        Ok(Self { version: workspace.version()?.to_owned(), time, maintainer })
    }

    /// The time of the package's files, in a format of date(1), such as `+%F`.
    fn date(&self, form: &str) -> Result<String, String> {
        let told = Tool::new("date").args([&format!("--date=@{}", self.time), form]).output()?;
        Ok(told.trim_end().to_owned())
    }

    /// The name of a tarball and of the folder in it.
    fn name(&self, part: &str) -> String {
        format!("softhca-{}-x86_64-linux{part}", self.version)
    }
}
