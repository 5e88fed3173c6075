//! Tells the linker what makes this cdylib a drop-in: the version nodes, the soname, and that it stays loaded once it is
//! loaded (its engine's thread must not lose its code to `dlclose`). It also lays `rdma/libibverbs.so.1` beside the
//! library, so that `LD_LIBRARY_PATH=target/<profile>/rdma` is enough to try it.

use std::path::PathBuf;

fn main() {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=abi.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", manifest.join("abi.map").display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    // OUT_DIR is target/<profile>/build/<package>-<hash>/out.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Some(profile) = out.ancestors().nth(3) {
        let directory = profile.join("rdma");
        let link = directory.join("libibverbs.so.1");
        // A build without the convenience link is still a good build.
        if std::fs::create_dir_all(&directory).is_ok() && std::fs::symlink_metadata(&link).is_err() {
            let _ = std::os::unix::fs::symlink("../libibverbs.so", &link);
        }
    }
}
