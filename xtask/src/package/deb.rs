//! The Debian package. Its libraries are in a folder that no linker searches, so the system's
//! libibverbs stays in use for other programs.
//!
//! `dpkg-deb` writes the file, because it also checks the fields. It honours SOURCE_DATE_EPOCH. The
//! dependencies follow from the libraries that the package's programs load ([`super::needs`]). The
//! principal function is [`build`].

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::BuildInfo;
use super::archive::compress;
use super::needs;
use super::tool::Tool;
use super::tree::{PAPERS, Tree, files};
use crate::workspace::Workspace;

/// The revision of the packaging. It sorts before 1, the first revision of Debian's own packages,
/// so a package of Debian replaces this one.
const REVISION: &str = "0softhca1";

const DESCRIPTION: &str = "\
RDMA adapter in software, for programs written for libibverbs
 softhca runs programs that were written for libibverbs and librdmacm without
 RDMA hardware, kernel modules or root. Programs on one host talk through
 shared memory, programs on different hosts talk RoCEv2 over UDP.
 .
 Its libraries lie in a private folder. Only programs that are started with
 \"softhca run\" load them; all others use the system's libibverbs.";

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: softhca

Files: *
Copyright: YEAR The softhca authors
License: MIT or Apache-2.0

License: Apache-2.0
 On Debian systems, the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.

License: MIT
";

/// Builds `softhca_VERSION_amd64.deb` in `out`. Uses `scratch` for the package's files.
pub(super) fn build(
    workspace: &Workspace,
    release: &BuildInfo,
    tree: &Tree,
    scratch: &Path,
    out: &Path,
) -> Result<PathBuf, String> {
    let told = |error: std::io::Error| format!("cannot lay out the Debian package: {error}");
    lay_out(workspace, release, tree, scratch)?;
    let control = scratch.join("DEBIAN");
    fs::create_dir_all(&control).map_err(told)?;
    fs::write(control.join("control"), fields(release, tree, scratch)?).map_err(told)?;
    let names = data_files(scratch).map_err(told)?;
    let sums = Tool::new("md5sum").within(scratch).args(["--"]).args(&names).output()?;
    fs::write(control.join("md5sums"), sums).map_err(told)?;
    for file in ["control", "md5sums"] {
        fs::set_permissions(control.join(file), fs::Permissions::from_mode(0o644)).map_err(told)?;
    }
    set_folder_modes(scratch).map_err(told)?;
    let path = out.join(format!("softhca_{}_amd64.deb", version(release)));
    let dpkg = Tool::new("dpkg-deb").env("SOURCE_DATE_EPOCH", release.time.to_string());
    dpkg.args(["--root-owner-group", "-Zxz", "--build"]).args([scratch, &path]).run()?;
    Ok(path)
}

fn version(release: &BuildInfo) -> String {
    format!("{}-{REVISION}", release.version)
}

fn lay_out(workspace: &Workspace, release: &BuildInfo, tree: &Tree, folder: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| format!("cannot lay out the Debian package: {error}");
    let (usr, papers) = (folder.join("usr"), folder.join("usr/share/doc/softhca"));
    fs::create_dir_all(folder).map_err(told)?;
    harness::dist::copy(&tree.root(), &usr).map_err(told)?;
    fs::create_dir_all(&papers).map_err(told)?;
    for name in PAPERS {
        fs::remove_file(usr.join(name)).map_err(told)?;
    }
    let share = usr.join("share");
    // Debian's zsh searches this folder for completions of packages.
    fs::rename(share.join("zsh/site-functions"), share.join("zsh/vendor-completions")).map_err(told)?;
    fs::rename(usr.join("docs"), papers.join("docs")).map_err(told)?;
    let put = |name: &str, text: String| {
        let path = papers.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
            .map_err(told)
    };
    let read = |name: &str| fs::read_to_string(workspace.root().join(name)).map_err(|error| format!("{name}: {error}"));
    put("README.md", read("README.md")?)?;
    put("copyright", COPYRIGHT.replace("YEAR", &release.date("+%Y")?) + &indented(&read("LICENSE-MIT")?))?;
    put("changelog", read("CHANGELOG.md")?)?;
    put("changelog.Debian", debian_changelog(release)?)?;
    let pages = files(&share.join("man")).map_err(told)?;
    let changelogs = ["changelog", "changelog.Debian"].map(|name| papers.join(name));
    pages.iter().chain(&changelogs).try_for_each(|path| compress(path))?;
    // The README links to this name, and people search for it.
    symlink("changelog.gz", papers.join("CHANGELOG.md.gz")).map_err(told)
}

fn fields(release: &BuildInfo, tree: &Tree, folder: &Path) -> Result<String, String> {
    let programs = tree.programs()?;
    let own: Vec<String> = own_libraries(tree)?;
    let depends = needs::depends(programs.iter().map(PathBuf::as_path), &own)?;
    let size =
        Tool::new("du").within(folder).args(["--apparent-size", "--summarize", "--block-size=1024", "usr"]).output()?;
    let size = size.split_whitespace().next().unwrap_or("0");
    Ok(format!(
        "Package: softhca\nVersion: {}\nArchitecture: amd64\nMaintainer: {}\nInstalled-Size: {size}\nDepends: {depends}\n\
         Suggests: ibverbs-utils, perftest\nSection: net\nPriority: optional\nDescription: {DESCRIPTION}\n",
        version(release),
        release.maintainer
    ))
}

/// The names under which the package's programs load the package's own libraries.
fn own_libraries(tree: &Tree) -> Result<Vec<String>, String> {
    let folder = tree.root().join("lib/softhca");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

fn debian_changelog(release: &BuildInfo) -> Result<String, String> {
    let date = release.date("--rfc-email")?;
    Ok(format!(
        "softhca ({}) unstable; urgency=medium\n\n  * Version {}; changelog.gz says what is new.\n\n -- {}  {date}\n",
        version(release),
        release.version,
        release.maintainer
    ))
}

/// A text as the continuation of a field: a space before each line, and a dot for an empty line.
fn indented(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") }).collect()
}

/// The names of the files below `usr`, relative to the package's root.
fn data_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let found = files(&folder.join("usr"))?;
    Ok(found.iter().filter_map(|path| path.strip_prefix(folder).ok()).map(Path::to_path_buf).collect())
}

fn set_folder_modes(folder: &Path) -> std::io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            set_folder_modes(&path)?;
        }
    }
    Ok(())
}
