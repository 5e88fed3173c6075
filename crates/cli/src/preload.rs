//! The environment for libraries that a program loads before all others (`LD_PRELOAD`): the path
//! redirector, and on request the library that replaces sockets by rsockets, and the library that
//! makes large memory shared.
//!
//! This module only sets the variables of a command; [`crate::run`] starts the program. If the
//! build tree has no redirector, programs run without it. The principal function is [`add`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place;

/// The redirector's file name, in the folder of the verbs library.
const REDIRECTOR: &str = "libsofthca_preload.so";

/// The library that replaces the socket API, in a folder below.
const SOCKETS: &str = "rsocket/librspreload.so";

/// The library that makes large memory shared memory.
const SHARED_MEMORY: &str = "libsofthca_shared.so";

/// What a program loads besides the redirector.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extras {
    /// Sockets over RDMA.
    pub(crate) sockets: bool,
    /// Large memory is shared memory.
    pub(crate) shared_memory: bool,
}

/// The variable that tells the dynamic linker what to load first.
const VARIABLE: &str = "LD_PRELOAD";

/// The options of programs built with the address sanitizer. Without the option [`ANY_ORDER`], such
/// a program refuses to start when another library is loaded before the sanitizer's.
const SANITIZER: &str = "ASAN_OPTIONS";
const ANY_ORDER: &str = "verify_asan_link_order=0";

/// Makes `command` load the redirector in `folder`, and the extras, after the libraries that it
/// loads first already.
pub(crate) fn add(command: &mut Command, folder: &Path, extras: Extras, variable: impl Fn(&str) -> Option<OsString>) {
    let libraries = libraries(folder, extras);
    if libraries.is_empty() {
        return;
    }
    let loaded =
        libraries.iter().fold(variable(VARIABLE).unwrap_or_default(), |loaded, library| list(library, &loaded));
    command.env(VARIABLE, loaded);
    command.env(SANITIZER, options(variable(SANITIZER).unwrap_or_default()));
}

/// The libraries of `folder` that a program loads before all others.
pub(crate) fn libraries(folder: &Path, extras: Extras) -> Vec<PathBuf> {
    let wanted = [(SHARED_MEMORY, extras.shared_memory), (SOCKETS, extras.sockets), (REDIRECTOR, true)];
    let files = wanted.iter().filter(|wanted| wanted.1).map(|wanted| folder.join(wanted.0));
    files.filter(|library| library.exists()).collect()
}

/// Checks that `folder` has the libraries that are asked for.
pub(crate) fn check(folder: &Path, extras: Extras) -> Result<(), String> {
    let wanted = [("--sockets", SOCKETS, extras.sockets), ("--shared-memory", SHARED_MEMORY, extras.shared_memory)];
    let missing = wanted.iter().find(|(_, library, wanted)| *wanted && !folder.join(library).exists());
    missing.map_or(Ok(()), |(option, library, _)| {
        Err(format!("{option}: {} has no {library}; {}", folder.display(), place::REINSTALL))
    })
}

/// The new value of the variable. Libraries that are in it already stay first, because they may
/// have to be first.
fn list(library: &Path, before: &OsStr) -> OsString {
    let separates = |byte: &u8| matches!(*byte, b' ' | b':');
    // The variable cannot hold a path with a separator. The linker also finds the library by its
    // file name.
    let sayable = !library.as_os_str().as_bytes().iter().any(separates);
    let name = if sayable { library.as_os_str() } else { library.file_name().unwrap_or_default() };
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

/// The last value of an option counts, so the user's choice of the order takes effect.
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
    fn libraries_preloaded_before_stay_in_front() {
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
    fn extras_are_loaded_on_demand() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("rsocket")).expect("made");
        let extras = |sockets, shared_memory| Extras { sockets, shared_memory };
        assert!(check(folder.path(), extras(true, false)).is_err_and(|why| why.contains("rsocket/librspreload.so")));
        assert!(check(folder.path(), extras(false, true)).is_err_and(|why| why.contains("--shared-memory")));
        for name in [REDIRECTOR, SOCKETS, SHARED_MEMORY] {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        assert_eq!(check(folder.path(), extras(true, true)), Ok(()));
        let loaded = |extras| {
            let mut command = Command::new("true");
            add(&mut command, folder.path(), extras, |_| None);
            let value = command.get_envs().find(|(name, _)| *name == VARIABLE).and_then(|(_, value)| value);
            value.expect("something is loaded").to_owned().into_string().expect("a plain path")
        };
        let none = loaded(Extras::default());
        assert!(!none.contains(SOCKETS) && !none.contains(SHARED_MEMORY));
        let sockets = loaded(extras(true, false));
        assert!(sockets.contains(SOCKETS) && sockets.ends_with(REDIRECTOR) && !sockets.contains(SHARED_MEMORY));
        assert!(loaded(extras(false, true)).contains(SHARED_MEMORY));
    }

    #[test]
    fn the_sanitizers_own_options_stay() {
        assert_eq!(options("".into()), ANY_ORDER);
        assert_eq!(options("detect_leaks=0".into()), "verify_asan_link_order=0:detect_leaks=0");
        let library = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("true");
        add(&mut command, library.path(), Extras { sockets: true, shared_memory: true }, |_| None);
        assert_eq!(command.get_envs().count(), 0, "no library, nothing to load");
        std::fs::write(library.path().join(REDIRECTOR), "").expect("written");
        add(&mut command, library.path(), Extras::default(), |_| None);
        assert_eq!(command.get_envs().count(), 2);
    }
}
