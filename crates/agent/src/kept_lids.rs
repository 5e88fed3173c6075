//! The file in which a subnet manager keeps the LIDs of ports over its restart. Not its format,
//! which `sm::lids` has. Principal type: [`KeptLids`].

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sm::lids::LidMap;

/// Writes the map of LIDs. A reader finds the old file or the new one.
///
/// # Errors
/// The file cannot be written.
pub fn keep(path: &Path, map: &LidMap) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = fs::File::create(&new)?;
    file.write_all(sm::lids::emit(map).as_bytes())?;
    file.sync_all()?;
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
}

impl KeptLids {
    /// The file, and what it has. `None` if the settings name none.
    ///
    /// # Errors
    /// The file is unreadable or malformed.
    pub(crate) fn of(settings: &sm::Settings) -> Result<Option<Self>, sm::BadSettings> {
        let found = settings.kept_lids(|path| fs::read_to_string(path))?;
        Ok(settings.lids.clone().map(|path| Self { path, found, known: Vec::new() }))
    }

    /// What was kept for the next subnet, which has none of these ports.
    pub(crate) fn share(&mut self, are_elsewhere: impl Fn(u64) -> bool) -> LidMap {
        let own = self.found.iter().filter(|(guid, _)| !are_elsewhere(**guid));
        let share: LidMap = own.map(|(guid, lid)| (*guid, *lid)).collect();
        self.known.push(share.clone());
        share
    }

    /// Keeps the LIDs that the manager of a subnet has given.
    pub(crate) fn learn(&mut self, subnet: usize, given: LidMap) {
        if let Some(known) = self.known.get_mut(subnet) {
            *known = given;
        }
        let all = self.known.iter().flatten().map(|(guid, lid)| (*guid, *lid)).collect();
        if let Err(error) = keep(&self.path, &all) {
            tracing::warn!("the LIDs are not kept: {}: {error}", self.path.display());
        }
    }
}
