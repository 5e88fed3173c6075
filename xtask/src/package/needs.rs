//! The programs' dependencies in Debian's terms: the packages of the libraries that they load, each
//! with the oldest version that has all required symbol versions.
//!
//! It reads the output of `objdump -p`. The table of packages is short on purpose. A library that
//! is not in it is an error, because somebody must decide whether softhca may depend on it. The
//! principal function is [`depends`].

use std::collections::BTreeMap;
use std::path::Path;

use super::tool::Tool;

/// A library, the package that contains it, and the prefix of its symbol versions.
const PACKAGES: &[(&str, &str, &str)] = &[
    ("libc.so.6", "libc6", "GLIBC_"),
    ("libm.so.6", "libc6", "GLIBC_"),
    ("ld-linux-x86-64.so.2", "libc6", "GLIBC_"),
    // Every version of this package has the symbols that programs need.
    ("libgcc_s.so.1", "libgcc-s1", ""),
];

type LibraryVersion = Vec<u32>;

/// The field `Depends` for these programs. Their own libraries are not dependencies.
pub(super) fn depends<'a>(programs: impl Iterator<Item = &'a Path>, own: &[String]) -> Result<String, String> {
    let mut needs = BTreeMap::new();
    for program in programs {
        let text = Tool::new("objdump").args(["-p"]).args([program]).output()?;
        collect(&text, own, &mut needs).map_err(|why| format!("{}: {why}", program.display()))?;
    }
    Ok(told(&needs))
}

fn collect(text: &str, own: &[String], needs: &mut BTreeMap<&'static str, LibraryVersion>) -> Result<(), String> {
    let package = |library: &str| PACKAGES.iter().find(|(name, ..)| *name == library);
    let mut prefix = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["NEEDED", library] if own.iter().any(|name| name == library) => {}
            ["NEEDED", library] => {
                let (_, package, _) =
                    package(library).ok_or_else(|| format!("needs {library}, of no known package"))?;
                needs.entry(package).or_default();
            }
            ["required", "from", library] => {
                prefix = package(library.trim_end_matches(':')).filter(|(_, _, prefix)| !prefix.is_empty());
            }
            [hash, _, _, symbol] if hash.starts_with("0x") => {
                let Some((_, package, prefix)) = prefix else { continue };
                let Some(version) = symbol.strip_prefix(prefix) else { continue };
                let version = parse(version).ok_or_else(|| format!("{symbol} is no version that Debian could name"))?;
                let oldest = needs.entry(package).or_default();
                *oldest = version.max(std::mem::take(oldest));
            }
            _ => {}
        }
    }
    Ok(())
}

fn parse(version: &str) -> Option<LibraryVersion> {
    version.split('.').map(|part| part.parse().ok()).collect()
}

fn told(needs: &BTreeMap<&str, LibraryVersion>) -> String {
    let one = |(package, version): (&&str, &LibraryVersion)| {
        let numbers: Vec<String> = version.iter().map(u32::to_string).collect();
        match numbers[..] {
            [] => (*package).to_owned(),
            _ => format!("{package} (>= {})", numbers.join(".")),
        }
    };
    needs.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{collect, told};

    const PRINTED: &str = "\
Dynamic Section:
  NEEDED               libibverbs.so.1
  NEEDED               libgcc_s.so.1
  NEEDED               libc.so.6
  SONAME               librdmacm.so.1

Version definitions:
1 0x01 0x0a30e7e1 librdmacm.so.1

Version References:
  required from libibverbs.so.1:
    0x08e11c77 0x00 02 IBVERBS_99.9
  required from libc.so.6:
    0x09691974 0x00 04 GLIBC_2.3.4
    0x069691b4 0x00 03 GLIBC_2.34
    0x0d696919 0x00 03 GLIBC_2.9
  required from libgcc_s.so.1:
    0x0b792653 0x00 05 GCC_3.3.1
";

    #[test]
    fn the_newest_symbol_decides() {
        let mut needs = BTreeMap::new();
        collect(PRINTED, &["libibverbs.so.1".to_owned()], &mut needs).expect("known libraries");
        assert_eq!(told(&needs), "libc6 (>= 2.34), libgcc-s1");
    }

    #[test]
    fn a_library_of_no_known_package_is_an_error() {
        let why = collect(PRINTED, &[], &mut BTreeMap::new()).expect_err("libibverbs is not among the own ones");
        assert!(why.contains("libibverbs.so.1"), "{why}");
    }

    #[test]
    fn a_version_without_numbers_is_an_error() {
        let private = PRINTED.replace("GLIBC_2.9", "GLIBC_PRIVATE");
        let why = collect(&private, &["libibverbs.so.1".to_owned()], &mut BTreeMap::new()).expect_err("no version");
        assert!(why.contains("GLIBC_PRIVATE"), "{why}");
    }
}
