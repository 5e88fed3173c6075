//! Compiles the suite's own small verbs programs, which do what no Debian program does. They are in
//! C and use Debian's header.
//!
//! The sources are in `programs/`. Each opens with a comment that says what it shows. A test
//! compiles a program when it needs it. The principal function is [`build`].

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Room;

/// Compiles `programs/NAME.c` into the room's folder.
pub fn build(room: &Room, name: &str) -> Result<PathBuf, String> {
    build_with(room, name, &[])
}

/// Compiles `programs/NAME.c` and links it with more libraries, such as `-lrdmacm`.
pub fn build_with(room: &Room, name: &str, libraries: &[&str]) -> Result<PathBuf, String> {
    compile(name, &room.folder().join(name), libraries)
}

/// Compiles `programs/NAME.c` as a library that a program in another language loads.
pub fn build_library(room: &Room, name: &str) -> Result<PathBuf, String> {
    compile(name, &room.folder().join(format!("{name}.so")), &["-shared", "-fPIC"])
}

fn compile(name: &str, program: &Path, more: &[&str]) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs").join(name).with_extension("c");
    let output = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror"])
        .arg("-o")
        .args([program, &source])
        .args(more)
        .args(["-libverbs", "-lpthread"])
        .output()
        .map_err(|error| format!("gcc: {error}"))?;
    if output.status.success() {
        Ok(program.to_owned())
    } else {
        Err(format!("{}: {}", source.display(), String::from_utf8_lossy(&output.stderr)))
    }
}
