//! The path redirector in a program's environment: `LD_PRELOAD`, and what goes with it.
//!
//! It only makes the words; [`crate::run`] hands them to the program. A build tree without the library runs programs without it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// The library's file name; it lies beside the verbs library.
const REDIRECTOR: &str = "libsofthca_preload.so";

/// The variable with which the dynamic linker is told what to load before anything else.
const VARIABLE: &str = "LD_PRELOAD";

/// Options of programs that were built with the address sanitizer; such a program otherwise refuses to start when any
/// library is loaded before the sanitizer's own.
const SANITIZER: &str = "ASAN_OPTIONS";
const ANY_ORDER: &str = "verify_asan_link_order=0";

/// Has `command` load the redirector that lies in `folder`, behind what is loaded already.
pub(crate) fn add(command: &mut Command, folder: &Path, variable: impl Fn(&str) -> Option<OsString>) {
    let library = folder.join(REDIRECTOR);
    if !library.exists() {
        return;
    }
    command.env(VARIABLE, list(&library, &variable(VARIABLE).unwrap_or_default()));
    command.env(SANITIZER, options(variable(SANITIZER).unwrap_or_default()));
}

/// What is loaded before anything else: first what was asked for already, for it may insist on being first.
fn list(library: &Path, before: &OsStr) -> OsString {
    let separates = |byte: &u8| matches!(*byte, b' ' | b':');
    // A name with a separator in it cannot be said here; the linker finds the library by its name alone as well.
    let sayable = !library.as_os_str().as_bytes().iter().any(separates);
    let name = if sayable { library.as_os_str() } else { OsStr::new(REDIRECTOR) };
    if before.as_bytes().split(|byte| separates(byte)).any(|present| present == name.as_bytes()) {
        return before.to_owned();
    }
    let mut list = before.to_owned();
    if !list.is_empty() {
        list.push(":");
    }
    list.push(name);
    list
}

/// The last word counts, so what the user says about the order stays as it is.
fn options(before: OsString) -> OsString {
    if before.is_empty() {
        return ANY_ORDER.into();
    }
    let mut options = OsString::from(ANY_ORDER);
    options.push(":");
    options.push(before);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_in_front() {
        let library = Path::new("/opt/lib/libsofthca_preload.so");
        assert_eq!(list(library, OsStr::new("")), "/opt/lib/libsofthca_preload.so");
        assert_eq!(list(library, OsStr::new("a.so b.so")), "a.so b.so:/opt/lib/libsofthca_preload.so");
        let twice = "a.so:/opt/lib/libsofthca_preload.so";
        assert_eq!(list(library, OsStr::new(twice)), twice);
    }

    #[test]
    fn a_folder_that_cannot_be_said_is_left_to_the_search_path() {
        assert_eq!(list(Path::new("/my programs/libsofthca_preload.so"), OsStr::new("")), REDIRECTOR);
    }

    #[test]
    fn the_sanitizers_own_options_stay() {
        assert_eq!(options("".into()), ANY_ORDER);
        assert_eq!(options("detect_leaks=0".into()), "verify_asan_link_order=0:detect_leaks=0");
        let library = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("true");
        add(&mut command, library.path(), |_| None);
        assert_eq!(command.get_envs().count(), 0, "no library, nothing to load");
        std::fs::write(library.path().join(REDIRECTOR), "").expect("written");
        add(&mut command, library.path(), |_| None);
        assert_eq!(command.get_envs().count(), 2);
    }
}
