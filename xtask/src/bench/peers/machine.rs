//! The kind of machine that figures come from. Figures of different kinds are stored in different
//! folders, because they cannot be compared. The principal type is [`Machine`].

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Where a group was measured, with what, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// Name, family and model of the processor. The name alone says little in a virtual machine.
    pub(super) processor: String,
    pub(super) processors: usize,
    pub(super) kernel: String,
    pub(super) softhca: String,
    pub(super) date: String,
}

impl Machine {
    /// This machine today.
    pub(super) fn here(softhca: String) -> Result<Self, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        Ok(Self {
            processor: processor(&read("/proc/cpuinfo")?),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            softhca,
            date: today()?,
        })
    }

    /// The kind in words. Machines of one kind share a folder, also with different kernels.
    pub(super) fn kind(&self) -> String {
        format!("{}, {} processors", self.processor, self.processors)
    }

    /// The name of the folder for figures of this kind.
    pub(super) fn folder(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
        let kind: String = self.kind().chars().map(plain).collect();
        kind.split_whitespace().collect::<Vec<_>>().join("-")
    }
}

/// The processor's name, family and model, from /proc/cpuinfo.
fn processor(cpuinfo: &str) -> String {
    let value = |name: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let name = value("model name").unwrap_or("unknown processor");
    let parts =
        [("cpu family", "family"), ("model", "model")].map(|(key, word)| Some(format!("{word} {}", value(key)?)));
    std::iter::once(name.to_owned()).chain(parts.into_iter().flatten()).collect::<Vec<_>>().join(", ")
}

fn today() -> Result<String, String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().map_err(|error| format!("date: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Machine, processor};

    #[test]
    fn the_folder_names_processor_and_count() {
        let cpuinfo = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n";
        let machine = Machine {
            processor: processor(cpuinfo),
            processors: 2,
            kernel: "6.18".to_owned(),
            softhca: "0.1.0".to_owned(),
            date: "2026-01-01".to_owned(),
        };
        assert_eq!(machine.kind(), "AMD EPYC, family 25, model 17, 2 processors");
        assert_eq!(machine.folder(), "amd-epyc-family-25-model-17-2-processors");
        assert_eq!(processor(""), "unknown processor");
    }
}
