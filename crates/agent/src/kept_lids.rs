//! The file in which a subnet manager keeps the LIDs of ports over its restart. Not its format,
//! which `sm::lids` has. Principal type: [`KeptLids`].

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sm::lids::LidMap;

/// A file that could not be written is written again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// Writes the map of LIDs. A reader finds the old file or the new one. It does not wait for the
/// disk, so after a power failure the file may be empty, and ports get new LIDs.
///
/// # Errors
/// The file cannot be written, or another manager writes it at the same time.
pub fn keep(path: &Path, map: &LidMap) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // One that a manager left behind when it was killed, or a link that somebody else has put there.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
    file.write_all(sm::lids::emit(map).as_bytes())?;
    fs::rename(new, path)
}

/// The LIDs of all subnets of a topology, and their file.
#[derive(Debug)]
pub(crate) struct KeptLids {
    path: PathBuf,
    /// What the file had at the start.
    found: LidMap,
    /// What the manager of each subnet knows.
    known: Vec<LidMap>,
    /// When it could not be written. `None` if the file has what is known.
    failed: Option<Duration>,
}

impl KeptLids {
    /// The file, and what it has. `None` if the settings name none.
    ///
    /// # Errors
    /// The file is unreadable or malformed.
    pub(crate) fn of(settings: &sm::Settings) -> Result<Option<Self>, sm::BadSettings> {
        let found = settings.kept_lids(|path| fs::read_to_string(path))?;
        Ok(settings.lids.clone().map(|path| Self { path, found, known: Vec::new(), failed: None }))
    }

    /// What was kept for the next subnet, which has none of these ports.
    pub(crate) fn share(&mut self, are_elsewhere: impl Fn(u64) -> bool) -> LidMap {
        let own = self.found.iter().filter(|(guid, _)| !are_elsewhere(**guid));
        let share: LidMap = own.map(|(guid, lid)| (*guid, *lid)).collect();
        self.known.push(share.clone());
        share
    }

    /// Keeps the LIDs that the manager of a subnet has given, at this time of the fabric's clock.
    pub(crate) fn learn(&mut self, subnet: usize, given: LidMap, now: Duration) {
        if let Some(known) = self.known.get_mut(subnet) {
            *known = given;
        }
        self.write(now);
    }

    /// Writes again what could not be written, if it is time.
    pub(crate) fn try_again(&mut self, now: Duration) {
        if self.failed.is_some_and(|failed| now >= failed + AGAIN) {
            self.write(now);
        }
    }

    fn write(&mut self, now: Duration) {
        let all = self.known.iter().flatten().map(|(guid, lid)| (*guid, *lid)).collect();
        let written = keep(&self.path, &all);
        if let (Err(error), None) = (&written, self.failed) {
            tracing::warn!("the LIDs are not kept, and this is tried again: {}: {error}", self.path.display());
        }
        self.failed = written.is_err().then_some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &Path) -> KeptLids {
        let settings = sm::Settings { lids: Some(path.to_owned()), ..sm::Settings::default() };
        let mut kept = KeptLids::of(&settings).expect("no file is no error").expect("a file is named");
        kept.share(|_| false);
        kept
    }

    #[test]
    fn a_file_that_could_not_be_written_is_written_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("later/lids");
        let mut kept = of(&path);
        kept.learn(0, LidMap::from([(7, 5)]), Duration::from_secs(1));
        fs::create_dir(folder.path().join("later")).expect("created");
        kept.try_again(Duration::from_secs(10));
        assert!(!path.exists(), "it is not time yet");
        kept.try_again(Duration::from_secs(11));
        assert_eq!(of(&path).found, LidMap::from([(7, 5)]));
        fs::remove_file(&path).expect("removed");
        kept.try_again(Duration::from_secs(100));
        assert!(!path.exists(), "it was written");
    }

    #[test]
    fn a_link_in_the_place_of_the_new_file_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, new, victim] = ["lids", "lids.new", "victim"].map(|name| folder.path().join(name));
        fs::write(&victim, "precious").expect("written");
        std::os::unix::fs::symlink(&victim, new).expect("linked");
        keep(&path, &LidMap::from([(7, 5)])).expect("kept");
        assert_eq!(fs::read_to_string(victim).expect("it is there"), "precious");
        assert_eq!(of(&path).found, LidMap::from([(7, 5)]));
    }
}
