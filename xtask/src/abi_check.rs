//! `cargo xtask abi-check`: the symbols that the libraries for C programs export, against the committed lists.
//!
//! A symbol that is lost keeps a program from starting, or from finding a file; one that appears is a promise nobody decided on.
//! Both are errors. The principal type is [`Face`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::Workspace;

/// A library that C programs load.
struct Face {
    package: &'static str,
    /// What cargo calls the file.
    built: &'static str,
    /// What the file's name begins with wherever it is laid out.
    stem: &'static str,
    list: &'static str,
    heading: &'static str,
}

const FACES: &[Face] = &[
    Face {
        package: "libibverbs",
        built: "libibverbs.so",
        stem: "libibverbs.so",
        list: "capi/libibverbs/symbols.txt",
        heading: "# Every symbol that libibverbs.so.1 defines, with its version. Compared with readelf by `cargo xtask abi-check`.\n",
    },
    Face {
        package: "librdmacm",
        built: "librdmacm.so",
        stem: "librdmacm.so",
        list: "capi/librdmacm/symbols.txt",
        heading: "# Every symbol that librdmacm.so.1 defines, with its version. Compared with readelf by `cargo xtask abi-check`.\n",
    },
    Face {
        package: "softhca-preload",
        built: "libsofthca_preload.so",
        stem: "libsofthca_preload.so",
        list: "capi/preload/symbols.txt",
        heading: "# Every function of the C library that the path redirector stands in front of. Compared with readelf by `cargo xtask abi-check`.\n",
    },
];

/// Compares, or with `bless` writes the list; of one library, or of each after a release build.
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

/// `name@@VERSION` (or `name@VERSION` for an old variant) of every symbol that the library defines.
fn exported(library: &Path) -> Result<BTreeSet<String>, String> {
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

/// A row of readelf: number, value, size, type, binding, visibility, section, name.
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
    use super::symbol;

    #[test]
    fn rows_of_readelf() {
        let defined = "   160: 0000000000019d30     5 FUNC    GLOBAL DEFAULT   14 ibv_get_device_list@@IBVERBS_1.1";
        assert_eq!(symbol(defined).as_deref(), Some("ibv_get_device_list@@IBVERBS_1.1"));
        assert_eq!(symbol("     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND mmap64@GLIBC_2.2.5 (2)"), None);
        assert_eq!(symbol("   165: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.5"), None);
    }
}
