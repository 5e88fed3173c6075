//! Tells the linker what makes this cdylib a drop-in replacement: the version nodes, the soname,
//! and that the library stays loaded (`dlclose` must not unmap the code of the engine's thread). It
//! also creates the link `rdma/libibverbs.so.1` beside the library, so that
//! `LD_LIBRARY_PATH=target/<profile>/rdma` is enough to try it.

#[allow(dead_code, reason = "abi-check uses more of it")]
mod releases;

use releases::Releases;
use std::path::PathBuf;

/// The version node of softhca's own symbols, which programs find with dlsym (docs/why.md).
const OWN: &str = "SOFTHCA_1.0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=releases.rs");
    println!("cargo:rerun-if-changed=releases.txt");
    // OUT_DIR is target/<profile>/build/<package>-<hash>/out.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let script = out.join("abi.map");
    let table = Releases::parse(include_str!("releases.txt")).expect("a table of releases");
    std::fs::write(&script, table.version_script(&[OWN])).expect("written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    if let Some(profile) = out.ancestors().nth(3) {
        let directory = profile.join("rdma");
        let link = directory.join("libibverbs.so.1");
        // A build without the convenience link is still a good build.
        if std::fs::create_dir_all(&directory).is_ok() && std::fs::symlink_metadata(&link).is_err() {
            let _ = std::os::unix::fs::symlink("../libibverbs.so", &link);
        }
    }
}
