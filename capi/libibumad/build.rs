//! Tells the linker what makes this cdylib a drop-in replacement: version nodes, soname, and that
//! it stays loaded. It also creates the link `rdma/libibumad.so.3` beside the library.

#[allow(dead_code, reason = "abi-check uses more of it")]
#[path = "../libibverbs/releases.rs"]
mod releases;

use releases::Releases;
use std::path::PathBuf;

fn main() {
    // OUT_DIR is target/<profile>/build/<package>-<hash>/out.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../libibverbs/releases.rs");
    println!("cargo:rerun-if-changed=releases.txt");
    let script = out.join("abi.map");
    let table = Releases::parse(include_str!("releases.txt")).expect("a table of releases");
    std::fs::write(&script, table.version_script(&[])).expect("written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibumad.so.3");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if let Some(profile) = out.ancestors().nth(3) {
        let directory = profile.join("rdma");
        let link = directory.join("libibumad.so.3");
        // A build without the convenience link is still a good build.
        if std::fs::create_dir_all(&directory).is_ok() && std::fs::symlink_metadata(&link).is_err() {
            let _ = std::os::unix::fs::symlink("../libibumad.so", &link);
        }
    }
}
