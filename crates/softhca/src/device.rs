//! Devices that an agent on this host offers, before they are opened. Principal type: [`Device`].
//!
//! This crate finds devices as the C library does: by the nodes in the run directory, and by the
//! agent's mirror of `/sys` for their names.

use std::fs;
use std::path::{Path, PathBuf};

use abi::errno::Errno;
use engine::{SocketControl, rundir};

use crate::context::Context;
use crate::error::{Error, Result};

/// A device of an agent on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    directory: PathBuf,
    number: u32,
    name: String,
}

/// The devices of the agent that this process uses: the agent of `$SOFTHCA_DIR`, else the user's
/// own, else the system's.
///
/// # Errors
/// The run directory belongs to another user. If there is no agent, the list is empty and there is
/// no error.
pub fn devices() -> Result<Vec<Device>> {
    let directory = rundir::default();
    let devices = devices_in(&directory);
    if rundir::chosen().is_none() && !devices.is_empty() && !rundir::is_trusted(&directory) {
        let reason = format!(
            "the run directory {} belongs to another user: set {} to choose it on purpose, or remove it",
            directory.display(),
            rundir::VARIABLE
        );
        return Err(Error::refused(Errno::EACCES, reason));
    }
    Ok(devices)
}

/// The devices of the agent that serves a run directory; empty if no agent serves it.
#[must_use]
pub fn devices_in(directory: &Path) -> Vec<Device> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("uverbs")?.parse().ok();
    let mut numbers: Vec<u32> =
        fs::read_dir(directory).map(|entries| entries.flatten().filter_map(number).collect()).unwrap_or_default();
    numbers.sort_unstable();
    if !numbers.first().is_some_and(|first| rundir::is_served(&rundir::node(directory, *first))) {
        return Vec::new();
    }
    numbers.into_iter().map(|number| Device::describe(directory, number)).collect()
}

/// Opens the first device of the agent that this process uses.
///
/// # Errors
/// There is no agent (the sentence says how to start one), or the agent refuses.
pub fn open() -> Result<Context> {
    match devices()?.first() {
        Some(device) => device.open(),
        None => Err(Error::refused(
            Errno::ENODEV,
            format!(
                "the run directory {} has no device: start an agent with `softhca agent`, or run the program with `softhca run -- PROGRAM`",
                rundir::default().display()
            ),
        )),
    }
}

impl Device {
    fn describe(directory: &Path, number: u32) -> Self {
        let file = rundir::sysfs(directory).join(format!("class/infiniband_verbs/uverbs{number}/ibdev"));
        let name = fs::read_to_string(file).ok().and_then(|text| text.lines().next().map(str::to_owned));
        let name = name.unwrap_or_else(|| format!("softhca{number}"));
        Self { directory: directory.to_owned(), number, name }
    }

    /// The name of the device, such as `softhca0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the device.
    ///
    /// # Errors
    /// No agent serves the device, an agent of another version serves it, or the agent refuses.
    pub fn open(&self) -> Result<Context> {
        let control = SocketControl::open(&rundir::node(&self.directory, self.number), abi::open::profile::MAINLINE)?;
        let directory = self.directory.clone();
        Context::with_manager(Box::new(control), move || ::cm::Channel::open(&directory))
    }
}
