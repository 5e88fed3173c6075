//! Compares the symbols that a build needs and exports with those of other distributions. It only
//! runs readelf.
//!
//! A distribution's programs find all symbols if the build exports the complete list of that
//! distribution's rdma-core release, including the functions for provider libraries. The principal
//! type is [`Needs`].

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use harness::Dist;

use crate::abi_check::{self, releases::Releases};
use crate::workspace::Workspace;

/// A version as numbers.
type GlibcVersion = (u32, u32);

/// The symbols that a build needs and exports.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// The highest version of glibc whose symbols it uses.
    pub(crate) glibc: GlibcVersion,
    /// The libraries that replace those of rdma-core.
    libraries: Vec<Library>,
}

/// A library that replaces one of rdma-core.
#[derive(Debug)]
struct Library {
    name: &'static str,
    /// The exports of each rdma-core release: the text of `releases.txt`.
    table: String,
    /// Each name that it exports, with its version node.
    exported: BTreeSet<(String, String)>,
}

/// A distribution whose programs do not run here.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) name: &'static str,
    /// The version of its glibc; none for another C library.
    pub(crate) glibc: Option<GlibcVersion>,
    /// The newest rdma-core version in its updates.
    pub(crate) rdma_core: u32,
}

/// The data of their package pages (packages.ubuntu.com, packages.fedoraproject.org,
/// pkgs.alpinelinux.org, docs of RHEL).
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

impl Needs {
    /// Reads a build.
    pub(crate) fn of(workspace: &Workspace, dist: &Dist) -> Result<Self, String> {
        let mut glibc = (0, 0);
        for file in
            [dist.softhca(), dist.library(), dist.rdmacm(), dist.redirector(), dist.shared_memory(), dist.sockets()]
        {
            glibc = glibc.max(highest(&versions(&file)?, "GLIBC_"));
        }
        let files = [("libibverbs", dist.library()), ("librdmacm", dist.rdmacm())];
        let libraries = files.map(|(name, file)| Library::read(workspace, name, &file));
        Ok(Self { glibc, libraries: libraries.into_iter().collect::<Result<_, _>>()? })
    }

    /// The expected result for a distribution.
    pub(crate) fn judge(&self, other: &Other) -> Result<String, String> {
        match other.glibc {
            None => return Ok("no: its C library is musl, and the build is for glibc".to_owned()),
            Some(glibc) if glibc < self.glibc => {
                return Ok(format!("no: the build needs glibc {}", dotted(self.glibc)));
            }
            Some(_) => {}
        }
        let (mut known, mut missing) = (0, Vec::new());
        for library in &self.libraries {
            let table = Releases::parse(&library.table)?;
            if !table.releases().contains(&other.rdma_core) {
                return Ok(format!("unknown: no list of symbols of rdma-core {}", other.rdma_core));
            }
            let symbols = table.symbols(other.rdma_core);
            known += symbols.len();
            let lacks =
                |(name, node): &(&str, &str)| !library.exported.contains(&((*name).to_owned(), (*node).to_owned()));
            missing.extend(symbols.into_iter().filter(lacks).map(|(name, node)| format!("`{name}@{node}`")));
        }
        if missing.is_empty() {
            return Ok(format!("yes: it exports all {known} symbols of this release"));
        }
        Ok(format!(
            "programs that want none of the {} symbols (of {known}) that it lacks: {}",
            missing.len(),
            missing.join(", ")
        ))
    }

    /// The highest public symbol version of each library.
    pub(crate) fn newest(&self) -> String {
        let newest = |library: &Library| {
            let nodes = library.exported.iter().map(|(_, node)| node);
            let public = nodes.filter(|node| !node.contains("PRIVATE") && !node.starts_with(abi_check::OWN));
            let version = public.clone().map(|node| highest(node, "IBVERBS_").max(highest(node, "RDMACM_"))).max();
            format!("{} up to {}", library.name, dotted(version.unwrap_or_default()))
        };
        self.libraries.iter().map(newest).collect::<Vec<_>>().join(" and ")
    }
}

impl Library {
    fn read(workspace: &Workspace, name: &'static str, file: &Path) -> Result<Self, String> {
        let path = workspace.root().join("capi").join(name).join("releases.txt");
        let table = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let symbols = abi_check::exported(file)?;
        let exported = symbols.iter().filter_map(|symbol| symbol.split_once('@'));
        let exported = exported.map(|(name, node)| (name.to_owned(), node.trim_start_matches('@').to_owned()));
        Ok(Self { name, table, exported: exported.collect() })
    }
}

/// Formats a version.
pub(crate) fn dotted((major, minor): GlibcVersion) -> String {
    format!("{major}.{minor}")
}

/// The output of readelf for a file's symbol versions.
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
fn highest(said: &str, prefix: &str) -> GlibcVersion {
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
    fn the_expected_result_follows_from_the_needed_symbols() {
        let table = "newest 65\nnode IBVERBS_1.0 34 -\nnode IBVERBS_1.18 65 -\nnode IBVERBS_PRIVATE_34 34 -\n\
                     old IBVERBS_1.0 34 -\nnew IBVERBS_1.18 65 -\ndriver IBVERBS_PRIVATE 34 -\n";
        let needs = |exported: &[(&str, &str)]| {
            let exported = exported.iter().map(|(name, node)| ((*name).to_owned(), (*node).to_owned())).collect();
            let library = Library { name: "libibverbs", table: table.to_owned(), exported };
            Needs { glibc: (2, 34), libraries: vec![library] }
        };
        let all = [("old", "IBVERBS_1.0"), ("driver", "IBVERBS_PRIVATE_34"), ("new", "IBVERBS_1.18")];
        let judge =
            |needs: &Needs, glibc, rdma_core| needs.judge(&Other { name: "", glibc, rdma_core }).expect("a table");
        let glibc = Some((2, 34));
        assert_eq!(judge(&needs(&all), glibc, 65), "yes: it exports all 3 symbols of this release");
        assert_eq!(judge(&needs(&all[..2]), glibc, 64), "yes: it exports all 2 symbols of this release");
        assert!(judge(&needs(&all[..2]), glibc, 65).ends_with(" that it lacks: `new@IBVERBS_1.18`"));
        assert!(judge(&needs(&all[..1]), glibc, 34).ends_with(" that it lacks: `driver@IBVERBS_PRIVATE_34`"));
        assert!(judge(&needs(&all), glibc, 66).starts_with("unknown: "));
        assert!(judge(&needs(&all), Some((2, 31)), 34).starts_with("no: the build needs glibc 2.34"));
        assert!(judge(&needs(&all), None, 57).starts_with("no: its C library is musl"));
        assert_eq!(needs(&all).newest(), "libibverbs up to 1.18");
    }
}
