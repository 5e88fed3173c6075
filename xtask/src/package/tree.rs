//! The files of a package below a prefix: stripped programs, man pages, completions, licences and
//! documentation.
//!
//! Debug symbols are separate, named by build id, as in `/usr/lib/debug`. This file sets the mode
//! of every file, so the umask of the building user has no effect. The principal type is [`Tree`].

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use harness::Dist;

use super::BuildInfo;
use super::tool::Tool;
use crate::workspace::Workspace;

/// The files at the top of a package, or in its documentation folder.
pub(super) const PAPERS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The files of a package in a folder.
pub(super) struct Tree {
    folder: PathBuf,
}

impl Tree {
    /// Writes the files to a folder that does not exist yet.
    pub(super) fn lay_out(
        workspace: &Workspace,
        release: &BuildInfo,
        dist: &Dist,
        folder: &Path,
    ) -> Result<Self, String> {
        let tree = Self { folder: folder.to_path_buf() };
        tree.fill(workspace, dist).map_err(|error| format!("cannot lay out the package: {error}"))?;
        let pages = Tool::new(tree.root().join("bin/softhca")).within(&tree.root());
        pages.args(["pages", "share", &release.date("+%F")?]).run()?;
        for path in tree.programs()? {
            tree.strip(&path)?;
        }
        tree.set_modes(&tree.folder).map_err(|error| format!("{}: {error}", tree.folder.display()))?;
        Ok(tree)
    }

    /// The files that users unpack: `bin`, `lib`, `share`, the documentation.
    pub(super) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Debug symbols: `.build-id/xx/yyy.debug`.
    pub(super) fn debug(&self) -> PathBuf {
        self.folder.join("debug")
    }

    /// Every program and library.
    pub(super) fn programs(&self) -> Result<Vec<PathBuf>, String> {
        let files = |folder: &str| files(&self.root().join(folder)).map_err(|error| format!("{folder}: {error}"));
        Ok([files("bin")?, files("lib")?].concat())
    }

    fn fill(&self, workspace: &Workspace, dist: &Dist) -> io::Result<()> {
        let root = self.root();
        fs::create_dir_all(&root)?;
        harness::dist::copy(&dist.folder().join("bin"), &root.join("bin"))?;
        harness::dist::copy(&dist.folder().join("lib"), &root.join("lib"))?;
        for name in PAPERS {
            fs::copy(workspace.root().join(name), root.join(name))?;
        }
        // The pages that the help and the README mention. Decisions and figures are only in the
        // sources.
        fs::create_dir_all(root.join("docs/guide"))?;
        for folder in ["docs", "docs/guide"] {
            for entry in fs::read_dir(workspace.root().join(folder))? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "md") {
                    fs::copy(&path, root.join(folder).join(path.file_name().unwrap_or_default()))?;
                }
            }
        }
        Ok(())
    }

    /// Moves the debug symbols of a program to a separate file, and stores the file's name in the
    /// program.
    fn strip(&self, program: &Path) -> Result<(), String> {
        let id = build_id(program)?;
        let (folder, name) = id.split_at(2);
        let folder = self.debug().join(".build-id").join(folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let symbols = format!("{name}.debug");
        let objcopy = |words: &[&str]| Tool::new("objcopy").within(&folder).args(words).args([program]);
        objcopy(&["--only-keep-debug", "--compress-debug-sections"]).args([&symbols]).run()?;
        let link = format!("--add-gnu-debuglink={symbols}");
        objcopy(&["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", &link]).run()
    }

    /// Sets the modes: programs are executable, and everybody can read every file.
    fn set_modes(&self, folder: &Path) -> io::Result<()> {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                self.set_modes(&path)?;
                continue;
            }
            let mode = if path.starts_with(self.root().join("bin")) { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }
}

/// Every file below a folder, without links, in order.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn build_id(program: &Path) -> Result<String, String> {
    let text = Tool::new("readelf").args(["--notes"]).args([program]).output()?;
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    let id = id.filter(|id| id.len() > 2 && id.bytes().all(|digit| digit.is_ascii_hexdigit()));
    id.map(str::to_owned).ok_or_else(|| format!("{} has no build id", program.display()))
}
