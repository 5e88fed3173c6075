//! Makes a Debian release in a folder with debootstrap, and keeps it for later runs.
//!
//! A folder is made under a temporary name and renamed when it is complete. The archive is the one
//! that this machine's apt uses. The principal type is [`Roots`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Debian archive if apt's sources name none.
const ARCHIVE: &str = "http://deb.debian.org/debian";

/// A release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release {
    /// Its name in the archive.
    pub(crate) suite: &'static str,
    /// Its name for readers.
    pub(crate) title: &'static str,
}

/// The newest stable release.
pub(crate) const STABLE: Release = Release { suite: "trixie", title: "Debian 13" };

/// The release on which the OCI image is based.
pub(crate) const IMAGE: Release = Release { suite: "bookworm", title: "Debian 12" };

/// All releases, oldest first.
pub(crate) const RELEASES: [Release; 3] = [IMAGE, STABLE, Release { suite: "sid", title: "Debian sid" }];

/// A list of packages, and the suffix of the folder in which they are installed.
type PackageList = (&'static str, &'static [&'static str]);

/// The packages of all programs in the list.
pub(crate) const EVERYTHING: PackageList = (
    "",
    &[
        "ibverbs-utils",
        "perftest",
        "rdmacm-utils",
        "qperf",
        "python3-pyverbs",
        "rdma-core",
        "ucx-utils",
        "libfabric-bin",
        "iproute2",
        "procps",
        "lintian",
    ],
);

/// The packages of the short form.
pub(crate) const FEW: PackageList = ("-short", &["ibverbs-utils", "perftest", "rdmacm-utils"]);

/// The file with the names of a release's packages. A release with another list is made again.
const LIST: &str = "etc/softhca-packages";

/// Where releases are kept, and their archive.
#[derive(Debug)]
pub(crate) struct Roots {
    folder: PathBuf,
    mirror: String,
}

impl Roots {
    /// Uses this folder, or one in the user's cache, and this archive, or apt's.
    pub(crate) fn new(folder: Option<PathBuf>, mirror: Option<String>) -> Result<Self, String> {
        let folder =
            folder.or_else(cache).ok_or("neither XDG_CACHE_HOME nor HOME is set: name a folder with --roots")?;
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let folder = fs::canonicalize(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { folder, mirror: mirror.unwrap_or_else(archive) })
    }

    /// Returns the folder of a release with these packages. Makes it if it does not exist, or if
    /// `fresh`.
    pub(crate) fn ready(&self, release: &Release, packages: PackageList, fresh: bool) -> Result<PathBuf, String> {
        let (mark, packages) = packages;
        let place = self.folder.join(format!("{}{mark}", release.suite));
        let wanted = packages.join(" ");
        let is_complete = fs::read_to_string(place.join(LIST)).is_ok_and(|list| list == wanted);
        if is_complete && !fresh {
            return Ok(place);
        }
        println!("making {} in {} from {}", release.title, place.display(), self.mirror);
        let part = self.folder.join(format!("{}{mark}.part{}", release.suite, std::process::id()));
        let made = self.make(release, packages, &part).and_then(|()| {
            let told = |error: std::io::Error| format!("{}: {error}", place.display());
            if place.exists() {
                fs::remove_dir_all(&place).map_err(told)?;
            }
            fs::rename(&part, &place).map_err(told)
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&part);
        }
        // Another run may have made it meanwhile.
        made.or_else(|why| if place.exists() { Ok(()) } else { Err(why) }).map(|()| place)
    }

    fn make(&self, release: &Release, packages: &[&str], place: &Path) -> Result<(), String> {
        // In a mount namespace of its own, so that no mount is left in a folder that may be
        // removed.
        let mut debootstrap = Command::new("unshare");
        debootstrap.args(["--mount", "debootstrap", "--variant=minbase", release.suite]);
        quiet(debootstrap.arg(place).arg(&self.mirror))?;
        // No service may start.
        let policy = place.join("usr/sbin/policy-rc.d");
        let told = |error: std::io::Error| format!("{}: {error}", place.display());
        fs::write(&policy, "#!/bin/sh\nexit 101\n").map_err(told)?;
        fs::set_permissions(&policy, std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(told)?;
        let install = "apt-get -qq install --yes --no-install-recommends \"$@\" && apt-get clean";
        let mut apt = Command::new("chroot");
        apt.arg(place).args(["env", "DEBIAN_FRONTEND=noninteractive", "sh", "-euc", install, "sh"]).args(packages);
        quiet(&mut apt)?;
        fs::remove_dir_all(place.join("var/lib/apt/lists")).map_err(told)?;
        // Programs resolve the name of their host.
        fs::write(place.join("etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n").map_err(told)?;
        fs::write(place.join(LIST), packages.join(" ")).map_err(told)?;
        // Mount points: for the dist, and for the system's folders.
        for folder in ["opt/softhca", "sys", "proc", "dev", "run", "tmp"] {
            fs::create_dir_all(place.join(folder)).map_err(told)?;
        }
        Ok(())
    }

    /// Where releases are kept.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the archive answers. If it does not, a failure to make a release is not softhca's.
    pub(crate) fn can_reach_mirror(&self) -> bool {
        let address = format!("{}/dists/{}/InRelease", self.mirror.trim_end_matches('/'), STABLE.suite);
        let mut wget = Command::new("wget");
        wget.args(["-q", "-O", "/dev/null", "--timeout=20", "--tries=2", &address]);
        wget.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

/// The versions of the C library and of rdma-core in a release.
pub(crate) fn facts(root: &Path) -> [String; 2] {
    ["libc6", "libibverbs1"].map(|package| {
        let mut query = Command::new("dpkg-query");
        query.arg(format!("--admindir={}", root.join("var/lib/dpkg").display()));
        query.args(["--show", "--showformat=${Version}", package]);
        let said =
            query.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        said.split('-').next().unwrap_or_default().to_owned()
    })
}

fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("softhca/roots"))
}

/// Returns the archive that this machine's apt uses.
fn archive() -> String {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(SITE)", "Created-By: Packages"]);
    let said = apt.stderr(Stdio::null()).output().map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().find_map(|line| line.strip_prefix("Debian|Debian|")).map_or(ARCHIVE, str::trim).to_owned()
}

/// Runs a command with much output; shows the output only if it fails.
fn quiet(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    Err(format!("{name} ended with {}:\n{}", output.status, lines[lines.len().saturating_sub(20)..].join("\n")))
}
