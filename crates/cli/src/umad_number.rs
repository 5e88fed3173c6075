//! Which port has which number in `umadN` and `issmN`. What a client does with the number is in
//! crate `umad`. The principal function is [`number`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A port's number in `umadN` and `issmN`, from the agent's mirror of `/sys`: of a device, or of
/// the first one.
pub(crate) fn number(run_dir: &Path, device: Option<&str>, port: u8) -> io::Result<(u32, String)> {
    let folder = engine::rundir::sysfs(run_dir).join("class/infiniband_mad");
    let content = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let port = port.to_string();
    let found = fs::read_dir(folder)?.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("umad")?.parse().ok()?;
        let name = content(entry.path().join("ibdev"));
        let same = device.is_none_or(|device| device == name) && content(entry.path().join("port")) == port;
        same.then_some((number, name))
    });
    found.min().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the port has no management datagrams"))
}
