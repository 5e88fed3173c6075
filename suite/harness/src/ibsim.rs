//! ibsim, a simulator of InfiniBand subnets: the reference for what the programs of infiniband-diags
//! print. Not softhca: its programs run without it. The principal type is [`Ibsim`].

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::program::Program;
use crate::wait;
use crate::{HANG, Room};

/// A running ibsim. Its sockets have a name of their own, so several run at the same time.
#[derive(Debug)]
pub struct Ibsim<'a> {
    room: &'a Room,
    name: String,
    _server: Program,
}

impl<'a> Ibsim<'a> {
    /// Starts ibsim with this topology, which names each link at both ends. Its programs are those
    /// of the room's user.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(room: &'a Room, text: &str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("softhca-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let file = room.folder().join("ibsim.topo");
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = room.command("ibsim", ["-s", "-n", &file.display().to_string()]);
        command.env("IBSIM_SOCKNAME", &name);
        let mut server = room.start(command)?;
        let socket = format!("@{name}:ctl");
        let ready = wait::until(HANG, "ibsim to listen", || {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
            if sockets.contains(&socket) { Some(true) } else { server.ended().then_some(false) }
        })?;
        if ready { Ok(Self { room, name, _server: server }) } else { Err(server.everything()) }
    }

    /// A program that speaks ibsim's protocol itself.
    #[must_use]
    pub fn client(&self, program: &str, words: &[&str]) -> Command {
        let mut command = self.room.command(program, words);
        // The library makes a folder of its own there, in place of /sys.
        command.env("IBSIM_SOCKNAME", &self.name).current_dir(self.room.own_dir());
        command
    }

    /// A program of libibumad on a node.
    #[must_use]
    pub fn on(&self, node: &str, words: &[&str]) -> Command {
        let library = format!("/usr/lib/{}-linux-gnu/umad2sim/libumad2sim.so", std::env::consts::ARCH);
        let mut command = self.client("env", &[&[&format!("LD_PRELOAD={library}")[..]], words].concat());
        command.env("SIM_HOST", node);
        command
    }
}
