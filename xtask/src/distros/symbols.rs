//! What the libraries and programs of a build need of a system, and what other distributions have of it. It runs nothing but readelf.
//!
//! The principal type is [`Needs`].

use std::path::Path;
use std::process::Command;

use suite::Dist;

/// A version as numbers.
type Version = (u32, u32);

/// What a build needs and gives.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Needs {
    /// The highest version of glibc whose symbols it uses.
    pub(crate) glibc: Version,
    /// The highest IBVERBS version that it exports.
    pub(crate) verbs: Version,
    /// It exports the functions that driver libraries of rdma-core call.
    pub(crate) drivers: bool,
}

/// One of the functions of driver libraries.
const DRIVERS: &str = "ibv_cmd_create_cq_ex2@";

/// A distribution that is not run here.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) name: &'static str,
    /// Its C library; none if it is not glibc.
    pub(crate) glibc: Option<Version>,
    /// Its rdma-core, the newest of its updates.
    pub(crate) rdma_core: u32,
}

/// What their package pages say (packages.ubuntu.com, packages.fedoraproject.org, pkgs.alpinelinux.org, docs of RHEL).
pub(crate) const OTHERS: &[Other] = &[
    Other { name: "Ubuntu 22.04", glibc: Some((2, 35)), rdma_core: 39 },
    Other { name: "Ubuntu 24.04", glibc: Some((2, 39)), rdma_core: 50 },
    Other { name: "Rocky Linux 9", glibc: Some((2, 34)), rdma_core: 57 },
    Other { name: "Rocky Linux 10", glibc: Some((2, 39)), rdma_core: 57 },
    Other { name: "Fedora 43", glibc: Some((2, 42)), rdma_core: 58 },
    Other { name: "Fedora 44", glibc: Some((2, 43)), rdma_core: 61 },
    Other { name: "Fedora 45", glibc: Some((2, 44)), rdma_core: 64 },
    Other { name: "Alpine 3.24", glibc: None, rdma_core: 61 },
];

/// Since which rdma-core programs may want which IBVERBS version.
const SINCE: &[(u32, Version)] = &[(36, (1, 14)), (59, (1, 15)), (62, (1, 16)), (64, (1, 17)), (65, (1, 18))];

impl Needs {
    /// Reads a build.
    pub(crate) fn of(dist: &Dist) -> Result<Self, String> {
        let mut glibc = (0, 0);
        for file in [dist.softhca(), dist.library(), dist.rdmacm(), dist.redirector(), dist.sockets()] {
            glibc = glibc.max(highest(&versions(&file)?, "GLIBC_"));
        }
        let library = versions(&dist.library())?;
        Ok(Self { glibc, verbs: highest(&library, "IBVERBS_"), drivers: library.contains(DRIVERS) })
    }

    /// What is to be expected of a distribution.
    pub(crate) fn judge(&self, other: &Other) -> String {
        let wanted =
            SINCE.iter().rev().find(|(since, _)| other.rdma_core >= *since).map_or((1, 13), |(_, version)| *version);
        match other.glibc {
            None => "no: its C library is musl, and the build is for glibc".to_owned(),
            Some(glibc) if glibc < self.glibc => format!("no: the build needs glibc {}", dotted(self.glibc)),
            Some(_) if wanted > self.verbs => {
                format!(
                    "programs that want no more than IBVERBS_{}; its own may want IBVERBS_{}",
                    dotted(self.verbs),
                    dotted(wanted)
                )
            }
            Some(_) if !self.drivers => format!(
                "yes, but programs that load rdma-core's driver libraries, as newer versions of perftest do: the others want IBVERBS_{} at most",
                dotted(wanted)
            ),
            Some(_) => format!("yes: its programs want IBVERBS_{} at most", dotted(wanted)),
        }
    }
}

/// A version in words.
pub(crate) fn dotted((major, minor): Version) -> String {
    format!("{major}.{minor}")
}

/// What readelf says of a file's symbol versions.
fn versions(file: &Path) -> Result<String, String> {
    let output = Command::new("readelf").args(["--wide", "--version-info", "--dyn-syms"]).arg(file).output();
    let output = output.map_err(|error| format!("readelf: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("readelf cannot read {}", file.display()))
    }
}

/// The highest version with a prefix.
fn highest(said: &str, prefix: &str) -> Version {
    let words = said.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.')));
    let numbers = words.filter_map(|word| {
        let (major, minor) = word.strip_prefix(prefix)?.split_once('.')?;
        // GLIBC_2.2.5
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    numbers.max().unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let said = "Name: GLIBC_2.2.5  Flags: none\n Name: GLIBC_2.34  Flags: none\n Name: GLIBC_2.4\n IBVERBS_1.9 IBVERBS_1.14 IBVERBS_PRIVATE_34";
        assert_eq!((highest(said, "GLIBC_"), highest(said, "IBVERBS_")), ((2, 34), (1, 14)));
    }

    #[test]
    fn what_is_to_be_expected_follows_from_versions() {
        let needs = Needs { glibc: (2, 34), verbs: (1, 14), drivers: true };
        let other = |glibc, rdma_core| Other { name: "", glibc, rdma_core };
        assert!(needs.judge(&other(Some((2, 34)), 57)).starts_with("yes"));
        let without = Needs { drivers: false, ..needs };
        assert!(without.judge(&other(Some((2, 34)), 57)).starts_with("yes, but programs that load"));
        assert!(needs.judge(&other(Some((2, 31)), 28)).starts_with("no: the build needs glibc 2.34"));
        assert!(needs.judge(&other(None, 57)).starts_with("no: its C library is musl"));
        assert!(needs.judge(&other(Some((2, 43)), 65)).contains("IBVERBS_1.18"));
    }
}
