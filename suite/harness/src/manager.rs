//! Pairs of programs that connect through the connection manager: a server and a client.
//!
//! These servers listen on no TCP port, so the harness asks the agent whether a server is ready. A
//! program's line is a list of words with placeholders: `ADDRESS` is the server's address, `OWN` is
//! the side's own address, `PORT` is a reserved port, and `SOCKETS` loads the rsockets library. The
//! principal type is [`Place`].

use std::net::IpAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::hosts::{Family, Host, Hosts};
use crate::pair::Sides;
use crate::port::{self, Port};
use crate::program::Program;
use crate::{HANG, Room, process, wait};

/// Programs that serve until a signal ends them.
const SERVE_FOREVER: &[&str] = &["cmtime", "rcopy", "udpong", "qperf", "/usr/bin/python3"];

/// The rooms in which a server and a client run, and the addresses that they use.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    there: (&'a Room, IpAddr),
    here: (&'a Room, IpAddr),
}

/// A server that is ready, and its port.
#[derive(Debug)]
pub struct Server {
    /// The program.
    pub program: Program,
    port: Port,
}

impl Room {
    /// Both programs on this host, at a loopback address.
    pub fn place(&self, family: Family) -> Place<'_> {
        let address = match family {
            Family::V4 => IpAddr::from([127, 0, 0, 1]),
            Family::V6 => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        Place { there: (self, address), here: (self, address) }
    }

    /// The ids of the connection manager, as the agent shows them.
    pub fn manager_ids(&self) -> Result<Vec<Value>, String> {
        let shown = self.json(&["show", "--json"])?;
        shown["manager"]["ids"].as_array().cloned().ok_or_else(|| format!("no ids in {shown}"))
    }

    /// Waits until the agent has no context and no id.
    pub fn wait_until_all_is_forgotten(&self, limit: Duration) -> Result<(), String> {
        self.wait_until_empty(limit)?;
        let mut last = Ok(Vec::new());
        wait::until(limit, "the agent to forget all ids", || {
            last = self.manager_ids();
            matches!(&last, Ok(ids) if ids.is_empty()).then_some(())
        })
        .map_err(|late| format!("{late}; it still shows {last:?}"))
    }
}

impl Hosts {
    /// The server on the left host, the client on the right host.
    pub fn place(&self, family: Family) -> Place<'_> {
        let side = |host: &'_ Host| host.address(family);
        Place { there: (self.left.room(), side(&self.left)), here: (self.right.room(), side(&self.right)) }
    }
}

impl Server {
    /// The port that its line names.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The processes of this server.
    fn processes(&self) -> Vec<u32> {
        let id = self.program.id();
        std::iter::once(id).chain(process::descendants(id)).collect()
    }
}

impl<'a> Place<'a> {
    /// The server in one room and the client in another one, both on this host at 127.0.0.1.
    pub fn between(there: &'a Room, here: &'a Room) -> Self {
        let address = IpAddr::from([127, 0, 0, 1]);
        Self { there: (there, address), here: (here, address) }
    }

    /// The same rooms, with another address of the server's host.
    #[must_use]
    pub fn with_server_at(self, address: IpAddr) -> Self {
        Self { there: (self.there.0, address), ..self }
    }

    /// Starts a server and waits until it is ready.
    pub fn serve(&self, line: &str) -> Result<Server, String> {
        let port = Port::reserve()?;
        let words = self.words(line, self.there, &port);
        let program = self.there.0.start(self.there.0.run(&borrowed(&words)))?;
        let mut server = Server { program, port };
        self.wait_until_ready(line, &mut server)
            .map_err(|why| format!("{why}; `{line}` said:\n{}", server.program.everything()))?;
        Ok(server)
    }

    /// Waits until this many events are queued for a server that does not read them.
    pub fn wait_for_events(&self, server: &Server, count: u64) -> Result<(), String> {
        let own = server.processes();
        wait::until(HANG, "events to wait for the server", || {
            let ids = self.there.0.manager_ids().unwrap_or_default();
            let of_server = ids.iter().filter(|id| own.iter().any(|pid| id["pid"] == *pid));
            (of_server.filter_map(|id| id["events"].as_u64()).sum::<u64>() == count).then_some(())
        })
    }

    /// Starts a client of a server.
    pub fn call(&self, server: &Server, line: &str) -> Result<Program, String> {
        let words = self.words(line, self.here, &server.port);
        self.here.0.start(self.here.0.run(&borrowed(&words)))
    }

    /// Runs a server and its client to their ends. If the server serves for ever, this function
    /// ends it after its client and treats that end as success.
    pub fn meet(&self, server: &str, client: &str) -> Result<Sides, String> {
        let mut serving = self.serve(server)?;
        let mut calling = self.call(&serving, client)?;
        let ended = calling.wait(HANG);
        let client = ended.map_err(|why| format!("{why}\nthe server said:\n{}", serving.program.everything()))?;
        let forever = SERVE_FOREVER.iter().any(|name| server.split_whitespace().any(|word| word == *name));
        if forever || !client.succeeded() {
            serving.program.signal(Signal::TERM);
        }
        let ended = serving.program.wait(HANG);
        let mut server = ended.map_err(|why| format!("{why}\nand the client:\n{}", client.told()))?;
        if forever && server.code == 128 + Signal::TERM.as_raw() {
            server.code = 0;
        }
        Ok(Sides { server, client })
    }

    /// Runs a server and its client. Both must succeed and leave no objects behind.
    #[track_caller]
    pub fn must_meet(&self, server: &str, client: &str) -> Sides {
        let sides = Sides::must_succeed(&[server, "/", client], self.meet(server, client));
        self.must_be_empty();
        sides
    }

    /// Stops the test unless both agents are empty.
    #[track_caller]
    pub fn must_be_empty(&self) {
        for room in [self.there.0, self.here.0] {
            room.wait_until_all_is_forgotten(HANG).unwrap_or_else(|why| panic!("{why}"));
        }
    }

    /// The words of a line for one side, with all placeholders filled in.
    fn words(&self, line: &str, side: (&Room, IpAddr), port: &Port) -> Vec<String> {
        let sockets = format!("{}:{}", side.0.dist().sockets().display(), side.0.dist().redirector().display());
        let filled = |word: &str| {
            word.replace("ADDRESS", &self.there.1.to_string())
                .replace("OWN", &side.1.to_string())
                .replace("PORT", &port.number().to_string())
                .replace("SOCKETS", &sockets)
        };
        line.split_whitespace().map(filled).collect()
    }

    fn wait_until_ready(&self, line: &str, server: &mut Server) -> Result<(), String> {
        let port = server.port.number();
        let is = |name: &str| line.split_whitespace().any(|word| word == name);
        if is("qperf") {
            return port::wait_for_listener(server.program.id(), port, HANG, || server.program.ended());
        }
        if is("udpong") {
            return port::wait_for_datagrams(server.program.id(), port, HANG, || server.program.ended());
        }
        let ready = |id: &Value| if is("mckey") { id["groups"] != 0 } else { id["stage"] == "listening" };
        let found = wait::until(HANG, "the server to listen", || {
            let ended = server.program.ended();
            let own = server.processes();
            let ids = self.there.0.manager_ids().unwrap_or_default();
            let of_server = |id: &&Value| own.iter().any(|pid| id["pid"] == *pid);
            if ids.iter().filter(of_server).any(ready) { Some(true) } else { ended.then_some(false) }
        })?;
        if found { Ok(()) } else { Err("the server ended before it listened".to_owned()) }
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
