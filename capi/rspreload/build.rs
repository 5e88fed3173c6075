//! Gives the library its soname, and creates the link `rdma/rsocket/librspreload.so` beside the
//! other libraries of a build.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librspreload.so");

    // OUT_DIR is target/<profile>/build/<package>-<hash>/out.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Some(profile) = out.ancestors().nth(3) {
        let directory = profile.join("rdma/rsocket");
        let link = directory.join("librspreload.so");
        // A build without the convenience link is still a good build.
        if std::fs::create_dir_all(&directory).is_ok() && std::fs::symlink_metadata(&link).is_err() {
            let _ = std::os::unix::fs::symlink("../../librspreload.so", &link);
        }
    }
}
