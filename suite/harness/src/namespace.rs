//! A network namespace: interfaces, addresses and ports of a separate host, for a test that runs as
//! root.
//!
//! It is not a container: files, processes and users are those of the suite. The principal type is
//! [`Namespace`].

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace with a unique name and with loopback up. Dropping the value removes the
/// namespace, even when a test panics.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace. If the suite does not run as root, prints a line that says so and returns
    /// `None`: only root can make a namespace.
    pub fn new() -> Result<Option<Self>, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return Ok(None);
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("softhca-{}-{number}", std::process::id());
        finish(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name };
        // Addresses are usable at once, without duplicate address detection: no other host is in
        // this network.
        namespace.script(
            "ip link set lo up; cd /proc/sys/net/ipv6/conf; echo 0 >default/accept_dad; echo 0 >default/dad_transmits",
        )?;
        Ok(Some(namespace))
    }

    /// The name that `ip netns` uses.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The words that start a program in the namespace.
    pub fn entrance(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }

    /// Runs a shell script in the namespace as root. The script ends at its first failure. Returns
    /// the script's output.
    pub fn script(&self, script: &str) -> Result<String, String> {
        finish(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-euc", script]))
    }

    /// Makes a veth pair between two namespaces: one interface in each, both down.
    pub fn join(&self, here: &str, other: &Self, there: &str) -> Result<(), String> {
        let words = ["link", "add", here, "netns", &self.name, "type", "veth", "peer", there, "netns", &other.name];
        finish(Command::new("ip").args(words)).map(|_| ())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(why) = finish(Command::new("ip").args(["netns", "del", &self.name])) {
            eprintln!("{why}");
        }
    }
}

fn finish(command: &mut Command) -> Result<String, String> {
    let told = |what: &str, command: &Command| format!("{command:?}: {what}");
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| told(&error.to_string(), command))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(told(&String::from_utf8_lossy(&output.stderr), command))
    }
}
