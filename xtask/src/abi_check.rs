//! `cargo xtask abi-check`: compares the symbols that the C libraries export with the committed
//! lists, and with the exports of each release of rdma-core.
//!
//! If a symbol disappears, a program does not start or does not find a file. A new symbol is a
//! promise that nobody has decided on. Both are errors. The principal type is [`Face`].

#[allow(dead_code, reason = "build scripts use more of it")]
#[path = "../../capi/libibverbs/releases.rs"]
pub(crate) mod releases;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::Workspace;
use releases::Releases;

/// A library that C programs load.
struct Face {
    package: &'static str,
    /// The file name that cargo uses.
    built: &'static str,
    /// The beginning of the file name in every place where the library is installed.
    stem: &'static str,
    list: &'static str,
    /// The table of exports of each release of rdma-core, if the library replaces one of
    /// rdma-core's.
    releases: Option<&'static str>,
    heading: &'static str,
}

const FACES: &[Face] = &[
    Face {
        package: "libibverbs",
        built: "libibverbs.so",
        stem: "libibverbs.so",
        list: "capi/libibverbs/symbols.txt",
        releases: Some("capi/libibverbs/releases.txt"),
        heading: "# Every symbol that libibverbs.so.1 defines, with its version. Compared with readelf by `cargo xtask abi-check`.\n",
    },
    Face {
        package: "librdmacm",
        built: "librdmacm.so",
        stem: "librdmacm.so",
        list: "capi/librdmacm/symbols.txt",
        releases: Some("capi/librdmacm/releases.txt"),
        heading: "# Every symbol that librdmacm.so.1 defines, with its version. Compared with readelf by `cargo xtask abi-check`.\n",
    },
    Face {
        package: "libibumad",
        built: "libibumad.so",
        stem: "libibumad.so",
        list: "capi/libibumad/symbols.txt",
        releases: Some("capi/libibumad/releases.txt"),
        heading: "# Every symbol that libibumad.so.3 defines, with its version. Compared with readelf by `cargo xtask abi-check`.\n",
    },
    Face {
        package: "softhca-shared-memory",
        built: "libsofthca_shared.so",
        stem: "libsofthca_shared.so",
        list: "capi/shared-memory/symbols.txt",
        releases: None,
        heading: "# Every function of the C library that the library for shared memory stands in front of. Compared with readelf by `cargo xtask abi-check`.\n",
    },
    Face {
        package: "softhca-preload",
        built: "libsofthca_preload.so",
        stem: "libsofthca_preload.so",
        list: "capi/preload/symbols.txt",
        releases: None,
        heading: "# Every function of the C library that the path redirector stands in front of. Compared with readelf by `cargo xtask abi-check`.\n",
    },
];

/// Compares the list with one library, or with each library after a release build. With `bless`,
/// writes the list instead.
pub(crate) fn run(workspace: &Workspace, library: Option<PathBuf>, bless: bool) -> Result<(), String> {
    if let Some(library) = library {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        let face = FACES.iter().find(|face| name.starts_with(face.stem));
        let face = face.ok_or_else(|| format!("{}: there is no list for a file of this name", library.display()))?;
        return face.compare(workspace, &library, bless);
    }
    for face in FACES {
        let built = workspace.cargo(&["build", "--release", "--package", face.package]).status();
        if !built.is_ok_and(|status| status.success()) {
            return Err("the release build failed".to_owned());
        }
        face.compare(workspace, &workspace.target().join("release").join(face.built), bless)?;
    }
    Ok(())
}

impl Face {
    fn compare(&self, workspace: &Workspace, library: &Path, bless: bool) -> Result<(), String> {
        let exported = exported(library)?;
        if let Some(table) = self.releases {
            let text = fs::read_to_string(workspace.root().join(table)).map_err(|error| format!("{table}: {error}"))?;
            let differences = against_releases(&Releases::parse(&text)?, &exported);
            if !differences.is_empty() {
                return Err(format!("{differences}{} and {table} differ", library.display()));
            }
        }
        let list = workspace.root().join(self.list);
        let told = |error| format!("{}: {error}", self.list);
        if bless {
            let lines: Vec<&str> = exported.iter().map(String::as_str).collect();
            return fs::write(&list, format!("{}{}\n", self.heading, lines.join("\n"))).map_err(told);
        }
        let text = fs::read_to_string(&list).map_err(told)?;
        let promised: BTreeSet<String> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect();
        let mut differences = String::new();
        for lost in promised.difference(&exported) {
            differences += &format!("lost: {lost}\n");
        }
        for new in exported.difference(&promised) {
            differences += &format!("not in the list: {new}\n");
        }
        if differences.is_empty() {
            println!("{}: {} symbols as promised", self.package, exported.len());
            Ok(())
        } else {
            Err(format!("{differences}{} and {} differ", library.display(), self.list))
        }
    }
}

/// The prefix of the version nodes that no release of rdma-core has.
pub(crate) const OWN: &str = "SOFTHCA_";

/// Reports the symbols of releases that the library does not export, each with the first release
/// that has it. Also reports exported symbols that no release has.
fn against_releases(table: &Releases, exported: &BTreeSet<String>) -> String {
    let split = |symbol: &'_ String| -> Option<(String, String)> {
        let (name, node) = symbol.split_once('@')?;
        Some((name.to_owned(), node.trim_start_matches('@').to_owned()))
    };
    let mut there: BTreeSet<(String, String)> = exported.iter().filter_map(split).collect();
    let mut extra: BTreeSet<(String, String)> =
        there.iter().filter(|(_, node)| !node.starts_with(OWN)).cloned().collect();
    let mut differences = String::new();
    for release in table.releases() {
        for (name, node) in table.symbols(release) {
            let symbol = (name.to_owned(), node.to_owned());
            extra.remove(&symbol);
            // Each missing symbol is reported once.
            if there.insert(symbol) {
                differences += &format!("rdma-core {release} has {name}@{node}, and it is not exported\n");
            }
        }
    }
    for (name, node) in extra {
        differences += &format!("exported, and in no release of rdma-core: {name}@{node}\n");
    }
    differences
}

/// The symbols that the library defines, as `name@@VERSION` (or `name@VERSION` for an old variant).
pub(crate) fn exported(library: &Path) -> Result<BTreeSet<String>, String> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(library)
        .output()
        .map_err(|error| format!("readelf (package binutils): {error}"))?;
    if !output.status.success() {
        return Err(format!("readelf {}: {}", library.display(), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(symbol).collect())
}

/// Parses a row of readelf: number, value, size, type, binding, visibility, section, name.
fn symbol(row: &str) -> Option<String> {
    let words: Vec<&str> = row.split_whitespace().collect();
    let [_, _, _, kind, binding, _, section, name, ..] = words.as_slice() else {
        return None;
    };
    let defined = *section != "UND" && *section != "ABS";
    (defined && matches!(*kind, "FUNC" | "OBJECT" | "NOTYPE") && matches!(*binding, "GLOBAL" | "WEAK"))
        .then(|| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::{BTreeSet, Path, Releases, against_releases, symbol};

    /// Two nodes, a symbol that moved between them, a new symbol, and a private symbol.
    const TABLE: &str = "newest 50\nnode A_1.0 44 -\nnode A_1.1 47 -\nnode IBVERBS_PRIVATE_34 44 46\nnode IBVERBS_PRIVATE_47 47 -\n\
                         old A_1.0 44 -\nold A_1.1 47 -\nnew A_1.1 48 -\ncmd IBVERBS_PRIVATE 45 -\n";

    fn set(symbols: &[&str]) -> BTreeSet<String> {
        symbols.iter().map(|symbol| (*symbol).to_owned()).collect()
    }

    #[test]
    fn each_release_is_compared_and_nothing_else_is_exported() {
        let table = Releases::parse(TABLE).unwrap();
        let all = [
            "old@A_1.0",
            "old@@A_1.1",
            "new@@A_1.1",
            "cmd@IBVERBS_PRIVATE_34",
            "cmd@@IBVERBS_PRIVATE_47",
            "why@@SOFTHCA_1.0",
        ];
        assert_eq!(against_releases(&table, &set(&all)), "");
        for missing in &all[..5] {
            let (name, node) = missing.split_once('@').unwrap();
            let told =
                against_releases(&table, &set(&all.iter().copied().filter(|s| s != missing).collect::<Vec<_>>()));
            let wanted = format!(" has {name}@{}, and it is not exported\n", node.trim_start_matches('@'));
            assert!(told.ends_with(&wanted) && told.lines().count() == 1, "{told}");
        }
        let more = [&all[..], &["cmd@@A_1.1"]].concat();
        assert_eq!(against_releases(&table, &set(&more)), "exported, and in no release of rdma-core: cmd@A_1.1\n");
    }

    #[test]
    fn rows_that_contradict_the_table_are_refused() {
        for wrong in ["f B_1.0 44 -", "f A_1.0 33 -", "f A_1.0 47 46", "f A_1.0 44 51", "f A_1.0 44", "f A_1.0 44 x"] {
            let text = format!("{TABLE}{wrong}\n");
            assert!(Releases::parse(&text).is_err_and(|why| why.ends_with(wrong)), "{wrong}");
        }
    }

    #[test]
    fn a_version_script_builds_public_nodes_on_one_another() {
        let script = Releases::parse(TABLE).unwrap().version_script(&["OWN_1.0"]);
        let lines = [
            "A_1.0 { global: old; local: *; } ;",
            "A_1.1 { global: new; old; } A_1.0;",
            "IBVERBS_PRIVATE_34 { global: cmd; } ;",
            "IBVERBS_PRIVATE_47 { global: cmd; } ;",
            "OWN_1.0 { };",
        ];
        assert_eq!(script.lines().collect::<Vec<_>>(), lines);
    }

    /// The committed lists must contain the symbols of the releases. `cargo xtask abi-check`
    /// compares the lists with the libraries.
    #[test]
    fn the_committed_lists_have_every_symbol_of_every_release() {
        for library in ["libibverbs", "librdmacm", "libibumad"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi").join(library);
            let table = std::fs::read_to_string(folder.join("releases.txt")).unwrap();
            let list = std::fs::read_to_string(folder.join("symbols.txt")).unwrap();
            let promised: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(against_releases(&Releases::parse(&table).unwrap(), &set(&promised)), "", "{library}");
        }
    }

    #[test]
    fn rows_of_readelf() {
        let defined = "   160: 0000000000019d30     5 FUNC    GLOBAL DEFAULT   14 ibv_get_device_list@@IBVERBS_1.1";
        assert_eq!(symbol(defined).as_deref(), Some("ibv_get_device_list@@IBVERBS_1.1"));
        assert_eq!(symbol("     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND mmap64@GLIBC_2.2.5 (2)"), None);
        assert_eq!(symbol("   165: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.5"), None);
    }
}
