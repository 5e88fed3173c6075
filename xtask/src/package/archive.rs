//! Makes tarballs whose bytes depend only on their files: sorted, with one time, owned by root. The
//! principal function is [`pack`].

use std::path::{Path, PathBuf};

use super::BuildInfo;
use super::tool::Tool;

/// Packs a folder as `NAME.tar.gz` in `out`. All its files are below `NAME/`.
pub(super) fn pack(release: &BuildInfo, folder: &Path, name: &str, out: &Path) -> Result<PathBuf, String> {
    let path = out.join(format!("{name}.tar"));
    let packed = out.join(format!("{name}.tar.gz"));
    Tool::new("tar")
        .within(folder)
        .args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .args([
            format!("--mtime=@{}", release.time),
            format!("--transform=flags=rSH;s,^\\.,{name},"),
            "--file".to_owned(),
        ])
        .args([path.as_path(), Path::new(".")])
        .run()?;
    compress(&path)?;
    Ok(packed)
}

/// Replaces a file by its compressed form, without a name or time inside.
pub(super) fn compress(path: &Path) -> Result<(), String> {
    Tool::new("gzip").args(["--best", "--no-name", "--force"]).args([path]).run()
}
