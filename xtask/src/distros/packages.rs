//! Installs the packages of the build in each release as the README says, and uses them there as an
//! ordinary user.
//!
//! It runs the lines of the README exactly, with the version in place of `VERSION`. The exception
//! is the OCI image: podman does not start it; instead its layer is unpacked, and its own command
//! runs there. The principal type is [`BuiltPackages`].

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::Dist;
use serde_json::Value;
use tempfile::TempDir;

use super::root::{self, Release};
use super::session::{self, Entry, TestResult};
use crate::package::tool::Tool;
use crate::package::{self, Made};
use crate::workspace::Workspace;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackageTest {
    /// Its name in the table.
    pub(crate) name: &'static str,
    way: PackageKind,
}

/// How a package is tested.
#[derive(Debug, Clone, Copy)]
enum PackageKind {
    Deb,
    Tarball,
    Image,
    Lintian,
}

/// All packages.
pub(crate) const ALL: &[PackageTest] = &[
    PackageTest { name: "Debian package: install, first lines, remove", way: PackageKind::Deb },
    PackageTest { name: "tarball: unpack, first lines", way: PackageKind::Tarball },
    PackageTest { name: "OCI image: its default command", way: PackageKind::Image },
    PackageTest { name: "Debian package: lintian", way: PackageKind::Lintian },
];

/// The time limit of an installation.
const LIMIT: Duration = Duration::from_secs(300);
/// The folder of the packages inside a release.
const PLACE: &str = "/mnt";
/// The output of the README's first lines: a device, and the client's time.
const SAYS: &[&str] = &["PORT_ACTIVE", "client: 1000 iters in"];
/// The output of the image's command.
const IMAGE_SAYS: &[&str] = &["PORT_ACTIVE", "1000 iters in"];

/// Installs as root, then runs as an ordinary user. The system's own library must stay unchanged,
/// and no file may be left behind.
const DEB: &str = "set -eux\n\
    cd /mnt\n\
    INSTALL\n\
    dpkg --verify libibverbs1 | { ! grep . ; }\n\
    cd /tmp\n\
    setpriv --reuid=65534 --regid=65534 --clear-groups sh -eux <<'END'\nFIRST\nEND\n\
    apt-get remove --yes softhca\n\
    test ! -e /usr/bin/softhca -a ! -e /usr/lib/softhca\n";

/// Runs as an ordinary user.
const TARBALL: &str = "set -eux\ncd /tmp\nln -s /mnt/softhca-*.tar.gz .\nINSTALL\nFIRST\n";

const LINTIAN: &str = "cd /tmp; exec lintian --fail-on error,warning /mnt/softhca_*.deb";

/// The packages of a build.
#[derive(Debug)]
pub(crate) struct BuiltPackages {
    /// Removed together with the packages.
    _scratch: TempDir,
    folder: PathBuf,
    image: Image,
    lines: Lines,
}

/// The OCI image as a folder, and its configuration.
#[derive(Debug)]
struct Image {
    root: PathBuf,
    user: String,
    path: String,
    folder: String,
    command: Vec<String>,
}

/// The lines of the README's section "Install".
#[derive(Debug)]
struct Lines {
    tarball: String,
    deb: String,
    first: String,
}

impl BuiltPackages {
    /// Makes the packages of a build, in a folder below `place`.
    pub(crate) fn make(workspace: &Workspace, dist: &Dist, place: &Path) -> Result<Self, String> {
        println!("making the packages");
        let told = |error: std::io::Error| format!("{}: {error}", place.display());
        let scratch = tempfile::Builder::new().prefix("packages.").tempdir_in(place).map_err(told)?;
        let [folder, root] = ["packages", "image"].map(|name| scratch.path().join(name));
        for folder in [&folder, &root] {
            fs::create_dir(folder).map_err(told)?;
            // Ordinary users must be able to read it, whatever the umask is.
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(told)?;
        }
        let made = package::make(workspace, dist, &folder, true)?;
        // Nothing here needs the debug symbols, and the README's glob must match one tarball.
        fs::remove_file(&made.debug).map_err(told)?;
        let readme = fs::read_to_string(workspace.root().join("README.md")).map_err(told)?;
        let lines = Lines::read(&readme, workspace.version()?)?;
        let image = Image::unpack(&made, root)?;
        Ok(Self { _scratch: scratch, folder, image, lines })
    }

    /// Tests a package in a release; returns none if the package is not for it.
    pub(crate) fn run(&self, package: &PackageTest, release: &Release, root: &Path) -> Option<TestResult> {
        let inside = |user, script: &str, says: &[&str]| {
            let entry = Entry { root, bound: Some((&self.folder, PLACE)), user };
            session::judged(entry.run(LIMIT, script, &[]), says)
        };
        let filled =
            |script: &str, install: &str| script.replace("INSTALL", install).replace("FIRST", &self.lines.first);
        match package.way {
            PackageKind::Deb => Some(inside("0", &filled(DEB, &self.lines.deb), SAYS)),
            PackageKind::Tarball => Some(inside(session::NOBODY, &filled(TARBALL, &self.lines.tarball), SAYS)),
            PackageKind::Lintian => Some(inside(session::NOBODY, LINTIAN, &[])),
            PackageKind::Image => (release.suite == root::IMAGE.suite).then(|| self.image.run()),
        }
    }
}

impl Image {
    /// Follows the image's digests from its index to the layer.
    fn unpack(made: &Made, root: PathBuf) -> Result<Self, String> {
        let folder = made.image.as_ref().ok_or("no image was made")?;
        let index = json(&folder.join("index.json"))?;
        let manifest = json(&blob(folder, &index["manifests"][0])?)?;
        let configuration = &json(&blob(folder, &manifest["config"])?)?["config"];
        let layers = manifest["layers"].as_array().map_or(&[][..], Vec::as_slice);
        for layer in layers {
            Tool::new("tar").args(["-xzf"]).args([blob(folder, layer)?]).args(["-C"]).args([&root]).run()?;
        }
        let words = |name: &str| configuration[name].as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let path = words("Env").iter().find_map(|entry| entry.strip_prefix("PATH=").map(str::to_owned));
        Ok(Self {
            root,
            user: text(&configuration["User"]).split(':').next().unwrap_or_default().to_owned(),
            path: path.ok_or("the image sets no PATH")?,
            folder: text(&configuration["WorkingDir"]),
            command: [words("Entrypoint"), words("Cmd")].concat(),
        })
    }

    fn run(&self) -> TestResult {
        let entry = Entry { root: &self.root, bound: None, user: &self.user };
        let mut words = vec![self.folder.as_str(), self.path.as_str()];
        words.extend(self.command.iter().map(String::as_str));
        session::judged(entry.run(LIMIT, "cd \"$1\"; export PATH=\"$2\"; shift 2; exec \"$@\"", &words), IMAGE_SAYS)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn json(path: &Path) -> Result<Value, String> {
    let told = |why: String| format!("{}: {why}", path.display());
    let text = fs::read(path).map_err(|error| told(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| told(error.to_string()))
}

/// The file that a descriptor names; its digest must match.
fn blob(folder: &Path, descriptor: &Value) -> Result<PathBuf, String> {
    let digest = text(&descriptor["digest"]);
    let name = digest.strip_prefix("sha256:").ok_or_else(|| format!("{descriptor} has no digest"))?;
    let path = folder.join("blobs/sha256").join(name);
    let found = Tool::new("sha256sum").args([&path]).output()?;
    if found.starts_with(name) { Ok(path) } else { Err(format!("{} has another digest", path.display())) }
}

impl Lines {
    /// Parses the section: the blocks for the tarball, the Debian package and the image, and the
    /// first lines with softhca.
    fn read(readme: &str, version: &str) -> Result<Self, String> {
        let section = readme.split("\n## Install\n").nth(1).and_then(|rest| rest.split("\n## ").next());
        let section = section.ok_or("README.md has no section \"Install\"")?;
        let blocks = section.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
        let lines = blocks.map(|block| {
            let line = |line: &str| line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).map(str::to_owned);
            let lines: Option<Vec<String>> = block.lines().map(line).collect();
            lines.map(|lines| lines.join("\n").replace("VERSION", version))
        });
        match &lines.collect::<Option<Vec<String>>>().unwrap_or_default()[..] {
            [tarball, deb, _, first] => Ok(Self { tarball: tarball.clone(), deb: deb.clone(), first: first.clone() }),
            _ => Err(
                "README.md: \"Install\" must have four blocks of commands: tarball, Debian package, image, first lines"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn the_lines_are_the_readmes() {
        let readme = include_str!("../../../README.md");
        let lines = Lines::read(readme, "1.2.3").expect("four blocks");
        assert!(lines.tarball.starts_with("tar -xzf softhca-1.2.3-x86_64-linux.tar.gz\n"), "{lines:?}");
        assert!(lines.deb.starts_with("apt-get install ./softhca_1.2.3-0softhca1_amd64.deb"), "{lines:?}");
        for words in ["softhca doctor", "softhca run -- ibv_devinfo", "softhca run --pair -- ibv_rc_pingpong"] {
            assert!(lines.first.contains(words), "{lines:?}");
        }
        assert!(Lines::read(&readme.replace("$ softhca doctor", "softhca doctor"), "1").is_err());
        assert!(Lines::read("# softhca\n", "1").is_err());
    }
}
