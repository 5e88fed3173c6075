//! Gives the library its soname, and creates the link `rdma/libsofthca_shared.so` beside the verbs
//! library of a build, so that the `softhca` of a build tree finds both in one folder.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsofthca_shared.so");

    // OUT_DIR is target/<profile>/build/<package>-<hash>/out.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    if let Some(profile) = out.ancestors().nth(3) {
        let directory = profile.join("rdma");
        let link = directory.join("libsofthca_shared.so");
        // A build without the convenience link is still a good build.
        if std::fs::create_dir_all(&directory).is_ok() && std::fs::symlink_metadata(&link).is_err() {
            let _ = std::os::unix::fs::symlink("../libsofthca_shared.so", &link);
        }
    }
}
