//! Tells the linker what makes this cdylib a drop-in replacement (version nodes, soname, that it
//! stays loaded), and what it imports: a stub of `libibverbs.so.1` with all its names and versions
//! and no code behind them. The stub is made from the other library's committed list of symbols. So
//! this library needs the real one when it is loaded, but not when it is built.
//!
//! It also creates the link `rdma/librdmacm.so.1` beside the library, as the build script of
//! libibverbs does.

#[allow(dead_code, reason = "abi-check uses more of it")]
#[path = "../libibverbs/releases.rs"]
mod releases;

use releases::Releases;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of `name@@VERSION`.
const SYMBOLS: &str = "../libibverbs/symbols.txt";

fn main() {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    // OUT_DIR is target/<profile>/build/<package>-<hash>/out.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../libibverbs/releases.rs");
    println!("cargo:rerun-if-changed=releases.txt");
    println!("cargo:rerun-if-changed={SYMBOLS}");
    println!("cargo:rerun-if-env-changed=CC");
    let script = out.join("abi.map");
    let table = Releases::parse(include_str!("releases.txt")).expect("a table of releases");
    std::fs::write(&script, table.version_script(&[])).expect("written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librdmacm.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    stub(&std::fs::read_to_string(manifest.join(SYMBOLS)).expect("the other library's list of symbols"), &out);
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=ibverbs");

    if let Some(profile) = out.ancestors().nth(3) {
        let directory = profile.join("rdma");
        let link = directory.join("librdmacm.so.1");
        // A build without the convenience link is still a good build.
        if std::fs::create_dir_all(&directory).is_ok() && std::fs::symlink_metadata(&link).is_err() {
            let _ = std::os::unix::fs::symlink("../librdmacm.so", &link);
        }
    }
}

/// Makes `libibverbs.so` in `out` for the linker, and `libibverbs.so.1` beside it, so that this
/// package's unit tests can start.
fn stub(symbols: &str, out: &Path) {
    let (mut source, mut nodes) = (String::from(".text\n"), BTreeMap::<&str, String>::new());
    for (name, version) in
        symbols.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("@@"))
    {
        let _ = write!(source, ".globl {name}\n.type {name},@function\n{name}:\n.byte 0\n");
        let _ = write!(nodes.entry(version.trim()).or_default(), " {name};");
    }
    source += ".section .note.GNU-stack,\"\",@progbits\n";
    let map: String = nodes.iter().map(|(version, names)| format!("{version} {{ global:{names} }};\n")).collect();
    let (assembly, script, library) = (out.join("stub.s"), out.join("stub.map"), out.join("libibverbs.so"));
    std::fs::write(&assembly, source).expect("written");
    std::fs::write(&script, map).expect("written");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-Wl,-soname,libibverbs.so.1", "-o"])
        .arg(&library)
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(&assembly)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{compiler} could not make {}", library.display());
    let _ = std::os::unix::fs::symlink("libibverbs.so", out.join("libibverbs.so.1"));
}
