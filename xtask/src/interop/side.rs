//! One case in one direction: the server on one side, the client on the other. The principal type
//! is [`Lab`].

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use harness::{Outcome, Program, Room, wait};

use super::cases::{Case, Ending, Family, Ready};
use super::peer::Peer;
use super::terminates::Request;

/// How long a program may take. An emulated machine is slow.
const LIMIT: Duration = Duration::from_secs(90);

/// The first TCP port. Each case has its own port.
const PORT: usize = 18_600;

/// Where the peer keeps the process id of its program.
const PID: &str = "/tmp/softhca-program.pid";

/// How often a case is tried whose client comes too early, and the distance of the ports of two
/// tries.
const TRIES: usize = 10;
const PORTS: usize = 200;
/// How much later the client starts, and makes its second connection, in each further try.
const PATIENCE: Duration = Duration::from_millis(250);
/// How many messages perftest's client gets over its first connection.
const GREETINGS: u32 = 6;
/// The exit status of `terminates`.
const TERMINATED: i32 = 2;
const EARLY: &str = "the client called before the server listened";

/// mckey's multicast group, as /proc/net/igmp shows it.
const GROUP: &str = "010101EF";

/// Which side has the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    Here,
    Peer,
}

impl Serves {
    /// Both, in the order of a table.
    pub(super) const ALL: [Serves; 2] = [Serves::Here, Serves::Peer];

    /// The place in [`Serves::ALL`].
    pub(super) fn index(self) -> usize {
        self as usize
    }

    fn other(self) -> Serves {
        match self {
            Serves::Here => Serves::Peer,
            Serves::Peer => Serves::Here,
        }
    }
}

/// Both sides.
pub(super) struct Lab<'a> {
    room: &'a Room,
    peer: &'a Peer,
    addresses: [String; 2],
    gids: [u64; 2],
    programs: &'a [Own],
}

/// A program of the suite.
pub(super) struct Own {
    pub(super) name: &'static str,
    /// Its path on this host.
    pub(super) here: PathBuf,
}

impl Own {
    /// Its path on the peer.
    pub(super) fn on_peer(&self) -> String {
        format!("/tmp/softhca-{}", self.name)
    }
}

impl<'a> Lab<'a> {
    pub(super) fn new(
        room: &'a Room,
        peer: &'a Peer,
        addresses: [&String; 2],
        programs: &'a [Own],
    ) -> Result<Lab<'a>, String> {
        let mut gids = [0; 2];
        // Programs name no GIDs of iWARP.
        for (gid, text) in gids.iter_mut().zip(addresses).filter(|_| peer.gids.is_some()) {
            let address: IpAddr = text.parse().map_err(|_| format!("{text} is no address"))?;
            *gid = room.gid_index(address)?.ok_or_else(|| format!("softhca has no GID for {address}: is it ours?"))?;
        }
        Ok(Lab { room, peer, addresses: addresses.map(Clone::clone), gids, programs })
    }

    /// Runs a case. The error says in one line what went wrong.
    pub(super) fn run(&self, case: &Case, serves: Serves, number: usize) -> Result<(), String> {
        let first = PORT + 2 * number + usize::from(serves == Serves::Peer);
        if case.loss > 0 {
            self.peer.lose(self.room, case.loss)?;
        }
        let ports = (first..).step_by(PORTS).take(TRIES).zip(0..);
        let mut results = ports.map(|(port, tries)| self.pair(case, serves, port, tries * PATIENCE));
        let is_early = |result: &Result<(), String>| result.as_ref().is_err_and(|why| why == EARLY);
        let result = results.find(|result| !is_early(result)).unwrap_or_else(|| Err(EARLY.to_owned()));
        if case.loss > 0 {
            let lost = self.peer.lost(self.room);
            self.peer.lose(self.room, 0)?;
            if result.is_ok() && lost? == 0 {
                return Err("nothing was lost, nothing is proved".to_owned());
            }
        }
        result
    }

    fn pair(&self, case: &Case, serves: Serves, port: usize, patience: Duration) -> Result<(), String> {
        let rule = match case.ending {
            Ending::Terminate(request) => request.fault(serves).map(str::to_owned),
            // perftest's client makes its second connection after the last messages of the first one. If
            // these arrive late, the server has the time to listen again.
            _ if case.start_up.is_some() && serves == Serves::Peer && !patience.is_zero() => {
                Some(format!("delay {}ms direction in count {GREETINGS}", patience.as_millis()))
            }
            _ => None,
        };
        let rule = rule.as_deref();
        // The peer's log may have the marks of an earlier run.
        let mark = format!("softhca-{}-{port}", std::process::id());
        if let Ending::Terminate(_) = case.ending {
            self.peer.ask(self.room, &format!("echo {mark} >/dev/kmsg"))?;
        }
        let mut server = self.start(serves, &self.filled(&case.server, case.family, serves, serves, port), rule)?;
        if let Err(late) = self.until_ready(case, serves, port, &mut server) {
            return Err(format!("{late}: {}", last_line(&server.everything())));
        }
        // Nothing shows when a server of rdma_cm on the peer listens.
        std::thread::sleep(patience);
        let asks = serves.other();
        let mut client = self.start(asks, &self.filled(&case.client, case.family, serves, asks, port), rule)?;
        let client =
            client.wait(LIMIT).map_err(|late| format!("{}; {}", one_line(&late), last_line(&server.everything())))?;
        match case.ending {
            Ending::Both if is_early(case, &client) => {
                self.end_server(serves)?;
                return Err(EARLY.to_owned());
            }
            Ending::Both => {}
            Ending::Copies if client.succeeded() => {
                let same = self.filled("cmp {refusals} {copy} && rm {copy}", case.family, serves, serves, port);
                let same = self.succeeds(self.shell(serves, &same));
                self.end_server(serves)?;
                return same.then_some(()).ok_or_else(|| "the copy is different".to_owned());
            }
            Ending::Terminate(request) => {
                let server = server.wait(LIMIT).map_err(|late| one_line(&late))?;
                return self.terminated(request, serves, [&server, &client], &mark);
            }
            Ending::Says(words) if client.everything().contains(words) => return self.end_server(serves),
            Ending::Says(_) | Ending::Copies => {
                return Err(format!("the client ended with {}: {}", client.code, last_line(&client.everything())));
            }
        }
        let server = server.wait(LIMIT).map_err(|late| one_line(&late))?;
        let said = |who: &str, outcome: &Outcome| {
            format!("{who} ended with {}: {}", outcome.code, last_line(&outcome.everything()))
        };
        match (server.succeeded(), client.succeeded()) {
            (true, true) => Ok(()),
            (true, false) => Err(said("the client", &client)),
            (false, true) => Err(said("the server", &server)),
            (false, false) => Err(format!("{}; {}", said("the client", &client), said("the server", &server))),
        }
    }

    /// Checks what both programs and siw's kernel say of a Terminate message.
    fn terminated(
        &self,
        request: &Request,
        serves: Serves,
        [server, client]: [&Outcome; 2],
        mark: &str,
    ) -> Result<(), String> {
        let end = request.end(serves).ok_or("the case is not possible")?;
        for (who, outcome) in [("server", server), ("client", client)] {
            if outcome.code != TERMINATED {
                return Err(format!("the {who} ended with {}: {}", outcome.code, last_line(&outcome.everything())));
            }
        }
        let of_client = client.everything();
        if !end.client.iter().any(|words| of_client.contains(words)) {
            return Err(format!("the client said: {}", in_one_line(&of_client)));
        }
        let of_server = server.everything();
        if !of_server.contains(end.server) {
            return Err(format!("the server said: {}", in_one_line(&of_server)));
        }
        let (ours, words) = match serves {
            Serves::Here => (of_server, format!("ended the stream: {}", end.reason.told())),
            Serves::Peer => (of_client, format!("got a Terminate message: {}", end.reason.told())),
        };
        if !ours.contains(&words) {
            return Err(format!("softhca said: {}", in_one_line(&ours)));
        }
        if serves == Serves::Here {
            let log = self.peer.ask(self.room, &format!("dmesg | sed -n '/{mark}$/,$p'"))?;
            if !log.contains(&end.reason.in_kernel()) {
                return Err(format!("siw's kernel said: {}", in_one_line(&log)));
            }
        }
        Ok(())
    }

    /// Ends a server of the peer that goes on: the peer runs only a few programs at a time, and a
    /// program that runs cannot be replaced there.
    fn end_server(&self, serves: Serves) -> Result<(), String> {
        match serves {
            Serves::Peer => self.peer.ask(self.room, &format!("kill $(cat {PID}) || true")).map(drop),
            Serves::Here => Ok(()),
        }
    }

    /// A line with the values of the side filled in.
    fn filled(&self, line: &str, family: Family, serves: Serves, side: Serves, port: usize) -> String {
        let (addresses, gids) = match side {
            Serves::Here => (&self.addresses, self.gids),
            Serves::Peer => (&self.peer.addresses, self.peer.gids.unwrap_or_default()),
        };
        let copy = match serves {
            Serves::Here => self.room.folder().join("copy").display().to_string(),
            Serves::Peer => "/tmp/softhca-copy".to_owned(),
        };
        let mut line = line.replace("{copy}", &copy);
        for program in self.programs {
            let path = if side == Serves::Here { program.here.display().to_string() } else { program.on_peer() };
            line = line.replace(&format!("{{{}}}", program.name), &path);
        }
        let server = if serves == Serves::Here { &self.addresses } else { &self.peer.addresses };
        line.replace("{gid}", &gids[family.index()].to_string())
            .replace("{port}", &port.to_string())
            .replace("{server}", &server[family.index()])
            .replace("{meet}", &server[0])
            .replace("{own}", &addresses[0])
    }

    /// Starts a program. softhca's side has the fault rule.
    fn start(&self, side: Serves, line: &str, rule: Option<&str>) -> Result<Program, String> {
        let command = match side {
            Serves::Here => {
                let mut words: Vec<&str> = vec!["run"];
                words.extend(rule.iter().flat_map(|rule| ["--fault", rule]));
                words.push("--");
                words.extend(line.split_whitespace());
                self.room.softhca(&words)
            }
            Serves::Peer => self.peer.command(&format!("echo $$ >{PID}; exec timeout {} {line}", LIMIT.as_secs())),
        };
        self.room.start(command)
    }

    /// Waits until the server is ready.
    fn until_ready(&self, case: &Case, serves: Serves, port: usize, server: &mut Program) -> Result<(), String> {
        let script = match case.ready {
            Ready::Tcp => format!("grep -qi ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"),
            Ready::Group => format!("grep -q {GROUP} /proc/net/igmp"),
            Ready::Listener if serves == Serves::Peer => "rdma resource show cm_id | grep -qi listen".to_owned(),
            Ready::Listener => String::new(),
        };
        let holds = || match (serves, case.ready) {
            (Serves::Here, Ready::Listener) => {
                self.room.show("cm").is_ok_and(|rows| rows.to_string().to_lowercase().contains("listen"))
            }
            _ => self.succeeds(self.shell(serves, &script)),
        };
        let ready =
            wait::until(LIMIT, "the server", || if holds() { Some(true) } else { server.ended().then_some(false) })?;
        if ready { Ok(()) } else { Err("the server ended before it was asked".to_owned()) }
    }

    /// A shell script on a side.
    fn shell(&self, side: Serves, script: &str) -> Command {
        match side {
            Serves::Here => self.room.command("sh", ["-c", script]),
            Serves::Peer => self.peer.command(script),
        }
    }

    fn succeeds(&self, command: Command) -> bool {
        let outcome = self.room.start(command).and_then(|mut program| program.wait(LIMIT));
        outcome.is_ok_and(|outcome| outcome.succeeded())
    }
}

/// Whether perftest's client called before its server listened. With -R, perftest makes two
/// connections. In between, the server closes its listener and opens a new one, and a client that is
/// faster is refused and gives up.
fn is_early(case: &Case, client: &Outcome) -> bool {
    case.start_up.is_some() && !client.succeeded() && client.everything().contains("refused")
}

/// The last line that is not empty.
fn last_line(text: &str) -> String {
    text.lines()
        .rev()
        .map(str::trim)
        .find(|line| line.chars().any(char::is_alphanumeric))
        .unwrap_or("nothing said")
        .to_owned()
}

/// All lines in one.
fn in_one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
