//! What an operator sets of a subnet manager: in a file with named keys, or by options of the same
//! names. Not all choices that a program has ([`crate::config::Config`]). Principal type:
//! [`Settings`].

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use crate::config::{Config, Engine, Routing};
use crate::lids::{self, LidMap};
use crate::partitions::Partitions;
use crate::qos;

/// The settings. The keys of a file have the names of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Of several managers, the one with the highest priority is the master. 0 to 15.
    pub priority: u8,
    /// Adapters and routers have 2^n LIDs. 0 to 7.
    pub lmc: u8,
    /// The routing engine.
    pub routing: Engine,
    /// The node GUIDs of the roots for up/down and fat-tree. Empty: they are found.
    #[serde(deserialize_with = "guids")]
    pub roots: Vec<u64>,
    /// A file of partitions, in the form of opensm's `partitions.conf`. Absent: one partition.
    pub partitions: Option<PathBuf>,
    /// A file of service levels and virtual lanes, in the form of opensm's options. Absent: the
    /// manager sets none.
    pub qos: Option<PathBuf>,
    /// The file in which the LIDs of ports are kept. Absent: the manager forgets them when it ends.
    pub lids: Option<PathBuf>,
    /// The life time of packets in path records: 4.096 µs × 2^n. 0 to 31.
    pub packet_life: u8,
    /// The subnet timeout of ports, the least time between their traps: 4.096 µs × 2^n. 0 to 31.
    pub subnet_timeout: u8,
    /// The time between sweeps, in seconds.
    pub sweep: u32,
    /// The time between polls of the master, in seconds. Absent: the program decides.
    pub poll: Option<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        let usual = Config::default();
        Settings {
            priority: usual.priority,
            lmc: usual.lmc,
            routing: usual.routing.engine,
            roots: usual.routing.roots,
            partitions: None,
            qos: None,
            lids: None,
            packet_life: usual.packet_life,
            subnet_timeout: usual.subnet_timeout,
            sweep: usual.timing.sweep_interval.as_secs() as u32,
            poll: None,
        }
    }
}

/// Why settings are refused. Each names the key, and what to write in its place.
#[derive(Debug, thiserror::Error)]
pub enum BadSettings {
    /// A number is out of its range.
    #[error("`{key}` is {value}; {least} to {most} are possible")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u32,
        /// The least possible value.
        least: u32,
        /// The largest possible value.
        most: u32,
    },
    /// A file cannot be read.
    #[error("`{key}`: cannot read {path}: {error}; write the path of a file that exists, or leave the key out")]
    Unreadable {
        /// The key that names the file.
        key: &'static str,
        /// Its path.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// A file is malformed.
    #[error("`{key}`: {path}: {what}")]
    Malformed {
        /// The key that names the file.
        key: &'static str,
        /// Its path.
        path: String,
        /// The line, and what is wrong there.
        what: String,
    },
}

impl Settings {
    /// The settings with the paths of files that are relative to a folder, such as that of the file
    /// with the settings.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Settings {
        for path in [&mut self.partitions, &mut self.qos, &mut self.lids].into_iter().flatten() {
            *path = folder.join(&*path);
        }
        self
    }

    /// Checks the numbers. The files are not read.
    ///
    /// # Errors
    /// The first number that is out of its range.
    pub fn check(&self) -> Result<(), BadSettings> {
        for (key, value, least, most) in [
            ("priority", self.priority.into(), 0, 15),
            ("lmc", self.lmc.into(), 0, 7),
            ("packet_life", self.packet_life.into(), 0, 31),
            ("subnet_timeout", self.subnet_timeout.into(), 0, 31),
            ("sweep", self.sweep, 1, u32::MAX),
            ("poll", self.poll.unwrap_or(1), 1, u32::MAX),
        ] {
            if !(least..=most).contains(&value) {
                return Err(BadSettings::Range { key, value, least, most });
            }
        }
        Ok(())
    }

    /// The LIDs that an earlier manager has kept. There are none without a file.
    ///
    /// # Errors
    /// The file is unreadable or malformed.
    pub fn kept_lids(&self, read: impl Fn(&Path) -> io::Result<String>) -> Result<LidMap, BadSettings> {
        let Some(path) = &self.lids else { return Ok(LidMap::new()) };
        let (key, named) = ("lids", path.display().to_string());
        match read(path) {
            Ok(text) => lids::parse(&text).map_err(|error| {
                let what = error.to_string();
                BadSettings::Malformed { key, path: named, what }
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LidMap::new()),
            Err(error) => Err(BadSettings::Unreadable { key, path: named, error }),
        }
    }

    /// The manager's choices: those of `usual`, changed by the settings. `read` gives the text of a
    /// file.
    ///
    /// # Errors
    /// A number is out of its range, or a file is unreadable or malformed.
    pub fn config(&self, usual: Config, read: impl Fn(&Path) -> io::Result<String>) -> Result<Config, BadSettings> {
        self.check()?;
        let mut config = Config {
            priority: self.priority,
            lmc: self.lmc,
            routing: Routing { engine: self.routing, roots: self.roots.clone() },
            packet_life: self.packet_life,
            subnet_timeout: self.subnet_timeout,
            ..usual
        };
        config.timing.sweep_interval = Duration::from_secs(self.sweep.into());
        if let Some(poll) = self.poll {
            config.timing.poll_interval = Duration::from_secs(poll.into());
        }
        let text = |key, path: &Path| {
            read(path).map_err(|error| BadSettings::Unreadable { key, path: path.display().to_string(), error })
        };
        let malformed = |key, path: &Path, what: &dyn std::fmt::Display| BadSettings::Malformed {
            key,
            path: path.display().to_string(),
            what: what.to_string(),
        };
        if let Some(path) = &self.partitions {
            let parsed = Partitions::parse(&text("partitions", path)?);
            config.partitions = parsed.map_err(|error| malformed("partitions", path, &error))?;
        }
        if let Some(path) = &self.qos {
            let parsed = qos::parse(&text("qos", path)?).map_err(|error| malformed("qos", path, &error))?;
            (config.qos, config.most_vls) = (Some(parsed.qos), parsed.most_vls);
        }
        Ok(config)
    }
}

/// Reads a GUID: up to 16 hex digits, with or without `0x` and colons.
///
/// # Errors
/// The text is no GUID.
pub fn guid(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").unwrap_or(text).replace(':', "");
    let guid = u64::from_str_radix(&hex, 16).ok().filter(|guid| *guid != 0);
    guid.ok_or_else(|| format!("{text:?} is no GUID; write up to 16 hex digits, such as 0x2c9000000001"))
}

fn guids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| guid(text).map_err(de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Timing;

    fn no_file(_: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    #[test]
    fn settings_without_a_change_are_the_usual_choices() {
        let usual = Config::default();
        let config = Settings::default().config(usual.clone(), no_file).expect("good");
        assert_eq!(format!("{config:?}"), format!("{usual:?}"));
    }

    #[test]
    fn each_setting_reaches_the_manager() {
        let settings = Settings {
            priority: 3,
            lmc: 2,
            routing: Engine::UpDown,
            roots: vec![7],
            partitions: Some("p".into()),
            qos: Some("q".into()),
            lids: None,
            packet_life: 19,
            subnet_timeout: 20,
            sweep: 60,
            poll: Some(5),
        };
        let read = |path: &Path| match path.to_str() {
            Some("/etc/p") => Ok("storage=0x10 : ALL=full ;".to_owned()),
            Some("/etc/q") => Ok("qos_max_vls 4\n".to_owned()),
            _ => no_file(path),
        };
        let config = settings.in_folder(Path::new("/etc")).config(Config::default(), read).expect("good");
        assert_eq!((config.priority, config.lmc, config.packet_life, config.subnet_timeout), (3, 2, 19, 20));
        assert_eq!(config.routing, Routing { engine: Engine::UpDown, roots: vec![7] });
        assert!(config.partitions.list.iter().any(|partition| partition.pkey == 0x10));
        assert_eq!((config.most_vls, config.qos.is_some()), (3, true));
        let Timing { sweep_interval, poll_interval, .. } = config.timing;
        assert_eq!((sweep_interval.as_secs(), poll_interval.as_secs()), (60, 5));
    }

    #[test]
    fn what_is_refused_names_its_key_and_what_is_possible() {
        let usual = Settings::default;
        let bad_file = |_: &Path| Ok("what is this\n".to_owned());
        for (settings, words) in [
            (Settings { priority: 16, ..usual() }, "`priority` is 16; 0 to 15"),
            (Settings { lmc: 8, ..usual() }, "`lmc` is 8; 0 to 7"),
            (Settings { packet_life: 32, ..usual() }, "`packet_life` is 32; 0 to 31"),
            (Settings { subnet_timeout: 32, ..usual() }, "`subnet_timeout` is 32; 0 to 31"),
            (Settings { sweep: 0, ..usual() }, "`sweep` is 0; 1 to"),
            (Settings { poll: Some(0), ..usual() }, "`poll` is 0; 1 to"),
            (Settings { qos: Some("q.conf".into()), ..usual() }, "`qos`: q.conf: line 1"),
            (Settings { partitions: Some("p.conf".into()), ..usual() }, "`partitions`: p.conf: "),
        ] {
            let told = settings.config(Config::default(), bad_file).expect_err(words).to_string();
            assert!(told.contains(words), "{told}");
        }
        let settings = Settings { partitions: Some("p.conf".into()), ..usual() };
        let told = settings.config(Config::default(), no_file).expect_err("no file").to_string();
        assert!(told.contains("`partitions`: cannot read p.conf") && told.contains("leave the key out"), "{told}");
    }

    #[test]
    fn kept_lids_are_those_of_the_file_and_a_file_may_be_missing() {
        let settings = Settings { lids: Some("l".into()), ..Settings::default() }.in_folder(Path::new("/var"));
        let kept = |text: &'static str| {
            settings
                .kept_lids(move |path| if path == Path::new("/var/l") { Ok(text.to_owned()) } else { no_file(path) })
        };
        assert_eq!(kept("0x7 5\n").expect("good"), LidMap::from([(7, 5)]));
        assert!(settings.kept_lids(no_file).expect("none yet").is_empty());
        assert!(Settings::default().kept_lids(|_| panic!("no file is named")).expect("none").is_empty());
        let told = kept("7").expect_err("no LID").to_string();
        assert!(told.contains("`lids`: /var/l: line 1"), "{told}");
    }

    #[test]
    fn a_guid_is_read_in_each_spelling() {
        for text in ["2c9000000001", "0x2c9000000001", "0000:02c9:0000:0001"] {
            assert!(guid(text).is_ok(), "{text}");
        }
        assert_eq!(guid("0002:c900:0000:0001"), Ok(0x2_c900_0000_0001));
        for bad in ["", "0", "S1", "10002c90000000011"] {
            assert!(guid(bad).expect_err(bad).contains("16 hex digits"));
        }
    }
}
