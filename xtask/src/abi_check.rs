//! `cargo xtask abi-check`: the symbols that libibverbs.so.1 exports, with their versions, against the committed list.
//!
//! A symbol that is lost keeps a program from starting; one that appears is a promise nobody decided on. Both are errors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::Workspace;

const LIST: &str = "capi/libibverbs/symbols.txt";

const HEADING: &str = "# Every symbol that libibverbs.so.1 defines, with its version. Compared with readelf by `cargo xtask abi-check`.\n";

/// Compares, or with `bless` writes the list.
pub(crate) fn run(workspace: &Workspace, library: Option<PathBuf>, bless: bool) -> Result<(), String> {
    let library = match library {
        Some(library) => library,
        None => {
            let built = workspace.cargo(&["build", "--release", "--package", "libibverbs"]).status();
            if !built.is_ok_and(|status| status.success()) {
                return Err("the release build failed".to_owned());
            }
            workspace.target().join("release/libibverbs.so")
        }
    };
    compare(workspace, &library, bless)
}

fn compare(workspace: &Workspace, library: &Path, bless: bool) -> Result<(), String> {
    let exported = exported(library)?;
    let list = workspace.root().join(LIST);
    if bless {
        let lines: Vec<&str> = exported.iter().map(String::as_str).collect();
        let text = format!("{HEADING}{}\n", lines.join("\n"));
        return fs::write(&list, text).map_err(|error| format!("{LIST}: {error}"));
    }
    let text = fs::read_to_string(&list).map_err(|error| format!("{LIST}: {error}"))?;
    let promised: BTreeSet<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    let mut told = String::new();
    for lost in promised.difference(&exported) {
        told += &format!("lost: {lost}\n");
    }
    for new in exported.difference(&promised) {
        told += &format!("not in the list: {new}\n");
    }
    if told.is_empty() {
        println!("{} symbols as promised", exported.len());
        Ok(())
    } else {
        Err(format!("{told}{} and {LIST} differ", library.display()))
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
