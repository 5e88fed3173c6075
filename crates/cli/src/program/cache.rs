//! The dynamic linker's cache, `/etc/ld.so.cache`, which maps the names of libraries to files.
//!
//! This module parses only the format of glibc 2.32 and later, and only entries for x86-64. If
//! there is no such cache, the usual folders remain. The principal function is [`read`].

use std::collections::HashMap;
use std::path::PathBuf;

const FILE: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

/// Bytes of the header and of an entry.
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// The flags of a library for x86-64 and the C library 6 (libc.so.6).
const X86_64: u32 = 0x0303;

/// The files by library name.
pub(super) fn read() -> HashMap<String, PathBuf> {
    parse(&std::fs::read(FILE).unwrap_or_default()).unwrap_or_default()
}

fn parse(bytes: &[u8]) -> Option<HashMap<String, PathBuf>> {
    bytes.strip_prefix(MAGIC)?;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let text = |at: u32| {
        let rest = bytes.get(usize::try_from(at).ok()?..)?;
        Some(String::from_utf8_lossy(rest.split(|byte| *byte == 0).next()?).into_owned())
    };
    let mut files = HashMap::new();
    for number in 0..usize::try_from(word(MAGIC.len())?).ok()? {
        let at = HEADER + number * ENTRY;
        let (flags, name, file) = (word(at)?, word(at + 4)?, word(at + 8)?);
        if flags == X86_64 {
            // The first entry of a name is the best one.
            files.entry(text(name)?).or_insert(PathBuf::from(text(file)?));
        }
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::{ENTRY, HEADER, MAGIC, X86_64, parse};

    #[test]
    fn a_name_stands_for_the_first_file_of_this_machine() {
        let strings = HEADER + 3 * ENTRY;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.resize(HEADER, 0);
        for (flags, file) in [(1_u32, 7), (X86_64, 10), (X86_64, 13)] {
            for word in [flags, strings as u32, (strings + file) as u32, 0, 0, 0] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes.extend(b"liba.so\0".iter().take(7).chain(b"/i\0/a\0/b\0"));
        // This byte ends the name where the first path begins, because this test has nothing
        // between them.
        bytes[strings + 6] = 0;
        let files = parse(&bytes).expect("sound");
        assert_eq!(files["liba.s"].to_str(), Some("/a"));
        assert!(parse(&bytes[..HEADER + 5]).is_none() && parse(b"ld.so-1.7.0").is_none());
    }
}
