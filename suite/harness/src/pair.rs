//! Two programs that talk to each other: a server, and a client that starts when the server
//! listens.
//!
//! The pingpongs and perftest exchange their addresses over TCP, on the port given with `-p`. The
//! principal type is [`Pair`].

use std::process::Command;
use std::time::Duration;

use crate::port::{self, Port};
use crate::program::{Outcome, Program};
use crate::{HANG, Room, process, wait};

/// perftest prints this text if it cannot measure the processor's clock. `TRIES` is how often a
/// pair runs until the text is absent.
const NO_CLOCK: &str = "Correlation coefficient r^2";
const TRIES: usize = 4;

/// A server and a client that both run.
#[derive(Debug)]
pub struct Pair {
    /// The side that was started first.
    pub server: Program,
    /// The side that connects.
    pub client: Program,
    _port: Port,
}

/// How both sides of a pair ended.
#[derive(Debug)]
pub struct Sides {
    /// The side that was started first.
    pub server: Outcome,
    /// The side that connected.
    pub client: Outcome,
}

impl Pair {
    /// Starts `words -p PORT`. When that program listens, starts `words -p PORT 127.0.0.1`. Both
    /// run under `softhca run`.
    pub fn start(room: &Room, words: &[&str]) -> Result<Self, String> {
        Self::start_different(room, words, room, words)
    }

    /// As [`Pair::start`], with different words or rooms for the two sides.
    pub fn start_different(there: &Room, server: &[&str], here: &Room, client: &[&str]) -> Result<Self, String> {
        Self::connect(there, server, here, client, "127.0.0.1")
    }

    /// As [`Pair::start_different`]; the client finds the server's TCP port at the address `host`.
    pub fn connect(there: &Room, server: &[&str], here: &Room, client: &[&str], host: &str) -> Result<Self, String> {
        Self::begin(
            (there, |more| there.run(&[server, more].concat())),
            (here, |more| here.run(&[client, more].concat())),
            host,
        )
    }

    /// As [`Pair::start`], on two nodes of the room's topology: each side with its node and its
    /// words.
    pub fn on_nodes(room: &Room, server: (&str, &[&str]), client: (&str, &[&str])) -> Result<Self, String> {
        let on = |(node, words): (&str, &[&str]), more: &[&str]| room.on(node, &[words, more].concat());
        Self::begin((room, |more| on(server, more)), (room, |more| on(client, more)), "127.0.0.1")
    }

    /// Starts the two commands of these rooms with their last arguments.
    fn begin(
        (there, server): (&Room, impl Fn(&[&str]) -> Command),
        (here, client): (&Room, impl Fn(&[&str]) -> Command),
        host: &str,
    ) -> Result<Self, String> {
        let port = Port::reserve()?;
        let number = port.number().to_string();
        let mut first = there.start(server(&["-p", &number]))?;
        port::wait_for_listener(first.id(), port.number(), HANG, || first.ended())
            .map_err(|why| format!("{why}; it said:\n{}", first.everything()))?;
        let second = here.start(client(&["-p", &number, host]))?;
        Ok(Self { server: first, client: second, _port: port })
    }

    /// Waits until both sides of a perftest pair are connected and the client has worked for a
    /// while. Returns the process ids of the server and the client themselves, not of `softhca
    /// run`.
    pub fn traffic(&mut self, name: &str, there: &Room, here: &Room) -> Result<(u32, u32), String> {
        let server = self.server.inner(name, HANG)?;
        let client = self.client.inner(name, HANG)?;
        let connected = |room: &Room, pid: u32| -> bool {
            let rows = room.show("qp").unwrap_or_default();
            rows.as_array().is_some_and(|rows| rows.iter().any(|row| row["pid"] == pid && row["path"] != "none"))
        };
        wait::until(HANG, "both to be connected", || {
            (connected(there, server) && connected(here, client)).then_some(())
        })?;
        // From here on the client polls at full speed, so half a second of CPU time is traffic.
        let before = process::cpu_time(client).ok_or("the client is gone")?;
        wait::until(HANG, "the client to work", || {
            (process::cpu_time(client)? > before + Duration::from_millis(500)).then_some(())
        })?;
        Ok((server, client))
    }

    /// Waits for both sides. If one side hangs, the error also contains the output of the other
    /// side.
    pub fn wait(&mut self, limit: Duration) -> Result<Sides, String> {
        let client =
            self.client.wait(limit).map_err(|why| format!("{why}\nthe server said:\n{}", self.server.everything()))?;
        let server = self.server.wait(limit).map_err(|why| format!("{why}\nand the client:\n{}", client.told()))?;
        Ok(Sides { server, client })
    }

    /// Runs a pair that must succeed on both sides.
    #[track_caller]
    pub fn must_succeed(room: &Room, words: &[&str]) -> Sides {
        Sides::must_succeed(words, Sides::measured(|| Self::start(room, words)?.wait(HANG)))
    }
}

impl Sides {
    /// Runs a pair, and runs it again if perftest could not measure the processor's clock and
    /// therefore cannot report. This happens on a virtual machine whose processors move. perftest
    /// measures the clock itself, before and after the traffic.
    pub fn measured(mut run: impl FnMut() -> Result<Self, String>) -> Result<Self, String> {
        for _ in 1..TRIES {
            let sides = run()?;
            if ![&sides.server, &sides.client].iter().any(|side| side.everything().contains(NO_CLOCK)) {
                return Ok(sides);
            }
        }
        run()
    }

    /// Stops the test unless both sides of the pair that was started with these words ended with 0.
    #[track_caller]
    pub fn must_succeed(words: &[&str], sides: Result<Self, String>) -> Self {
        let sides = sides.unwrap_or_else(|why| panic!("{}: {why}", words.join(" ")));
        assert!(
            sides.server.succeeded() && sides.client.succeeded(),
            "server: {}\nclient: {}",
            sides.server.told(),
            sides.client.told()
        );
        sides
    }
}
