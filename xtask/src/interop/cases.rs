//! The programs and their options. In their lines, {gid} is the index of the side's own address in
//! the GID table. {port} is a free TCP port. {server} is the server's address of the case's family.
//! {meet} is the server's IPv4 address, for the exchange over TCP. {own} is the side's own IPv4
//! address. {copy} is a file of the server. {everyopcode}, {refusals} and {terminates} are programs
//! of the suite. The principal type is [`Case`].

use super::side::Serves;
use super::siw::StartUp;
use super::terminates::Request;

/// The family of the addresses between which the data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// How to see that a server is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// The server listens on its TCP port.
    Tcp,
    /// The connection manager has a listener.
    Listener,
    /// The server's host has joined the multicast group.
    Group,
}

/// How a case ends well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Both programs succeed.
    Both,
    /// The client prints these words.
    Says(&'static str),
    /// The client succeeds, and the server's {copy} is equal to its {refusals}.
    Copies,
    /// The server ends the connection with a Terminate message.
    Terminate(&'static Request),
}

/// One program, or one way to use it.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) family: Family,
    pub(super) server: String,
    pub(super) client: String,
    pub(super) ready: Ready,
    /// The percentage of the peer's packets that are lost.
    pub(super) loss: u32,
    pub(super) ending: Ending,
    /// How connections of iWARP begin.
    pub(super) start_up: Option<&'static StartUp>,
    /// The only side that can have the server, if the other one cannot.
    pub(super) only: Option<Serves>,
}

impl Case {
    /// Whether this side can have the server.
    pub(super) fn is_possible(&self, serves: Serves) -> bool {
        let terminates = |request: &Request| request.end(serves).is_some();
        self.only.is_none_or(|only| only == serves)
            && !matches!(self.ending, Ending::Terminate(request) if !terminates(request))
    }

    /// What the table says of a direction that is good.
    pub(super) fn note(&self, serves: Serves) -> String {
        if let Ending::Terminate(request) = self.ending { request.note(serves) } else { String::new() }
    }

    /// The case's name in a table.
    pub(super) fn title(&self) -> String {
        let mut title = String::new();
        // All servers of `terminates` are the same.
        let line = if matches!(self.ending, Ending::Terminate(_)) { &self.client } else { &self.server };
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                // Options that depend on the host are left out.
                "-g" | "-x" | "-p" | "-a" | "-b" => drop(words.next()),
                "-s" if self.ready == Ready::Listener => {}
                _ => title = format!("{title} {}", word.trim_matches(['{', '}'])),
            }
        }
        let family = if self.family == Family::V6 { ", IPv6" } else { "" };
        let loss = if self.loss > 0 { format!(", {} % lost", self.loss) } else { String::new() };
        let start_up = self.start_up.map_or("", |start_up| start_up.title);
        format!("{}{family}{loss}{start_up}", title.trim())
    }
}

/// A program that exchanges addresses over TCP.
fn over_tcp(line: &str, gid: &str) -> Case {
    let server = format!("{line} {gid} {{gid}} -p {{port}}");
    let client = format!("{server} {{meet}}");
    Case { server, client, ready: Ready::Tcp, ..by_address("", "") }
}

fn pingpong(line: &str) -> Case {
    over_tcp(line, "-g")
}

/// perftest with its defaults.
fn perftest(line: &str) -> Case {
    over_tcp(&format!("{line} -F"), "-x")
}

pub(super) fn by_address(server: &str, client: &str) -> Case {
    Case {
        family: Family::V4,
        server: server.to_owned(),
        client: client.to_owned(),
        ready: Ready::Listener,
        loss: 0,
        ending: Ending::Both,
        start_up: None,
        only: None,
    }
}

pub(super) fn v6(case: Case) -> Case {
    Case { family: Family::V6, ..case }
}

fn lossy(case: Case) -> Case {
    Case { loss: 3, ..case }
}

/// All cases.
pub(super) fn all() -> Vec<Case> {
    let mut all = vec![pingpong("{everyopcode}"), v6(pingpong("{everyopcode}"))];
    for service in ["rc", "uc", "ud", "srq"] {
        all.push(pingpong(&format!("ibv_{service}_pingpong -c -n 100")));
        all.push(v6(pingpong(&format!("ibv_{service}_pingpong -c -n 100"))));
    }
    for mtu in [256, 512, 1024, 2048, 4096] {
        all.push(pingpong(&format!("ibv_rc_pingpong -c -n 50 -s 10000 -m {mtu}")));
    }
    all.extend([256, 4096].map(|mtu| v6(pingpong(&format!("ibv_rc_pingpong -c -n 50 -s 10000 -m {mtu}")))));
    for line in [
        "ib_send_lat -n 100",
        "ib_send_lat -c UC -n 100",
        "ib_send_lat -c UD -n 100",
        "ib_write_lat -n 100",
        "ib_write_lat -c UC -n 100",
        "ib_read_lat -n 100",
        "ib_atomic_lat -A FETCH_AND_ADD -n 100",
        "ib_atomic_lat -A CMP_AND_SWAP -n 100",
        "ib_send_bw -n 50",
        "ib_send_bw -c UD -n 50 -s 1024",
        "ib_write_bw -n 50",
        "ib_read_bw -n 50",
        "ib_atomic_bw -n 50",
    ] {
        all.push(perftest(line));
    }
    all.push(v6(perftest("ib_send_bw -n 50")));
    all.push(v6(perftest("ib_read_bw -n 50")));
    let rping = ("rping -s -a {server} -C 50 -V -S 3000", "rping -c -a {server} -C 50 -V -S 3000");
    all.push(by_address(rping.0, rping.1));
    all.push(v6(by_address(rping.0, rping.1)));
    all.push(by_address("ucmatose -c 4 -C 10", "ucmatose -c 4 -C 10 -s {server}"));
    // Without an address, the server listens only on IPv4.
    all.push(v6(by_address("ucmatose -b {server} -c 4 -C 10", "ucmatose -c 4 -C 10 -s {server}")));
    all.push(by_address("udaddy -c 2 -C 10", "udaddy -c 2 -C 10 -s {server}"));
    all.push(by_address("rstream -S 1024 -C 100", "rstream -S 1024 -C 100 -s {server}"));
    let mckey = by_address("mckey -m 239.1.1.1 -C 10 -b {own}", "mckey -m 239.1.1.1 -C 10 -b {own} -s");
    all.push(Case { ready: Ready::Group, ..mckey });
    all.push(lossy(pingpong("ibv_rc_pingpong -c -n 100 -s 10000")));
    for line in ["ib_send_bw -n 20", "ib_write_bw -n 20", "ib_read_bw -n 20", "ib_atomic_bw -n 50"] {
        all.push(lossy(perftest(line)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_differ_and_name_nothing_of_a_host() {
        let mut titles: Vec<String> = all().iter().map(Case::title).collect();
        assert!(titles.iter().all(|title| !title.contains('{')), "{titles:?}");
        assert_eq!(titles[1], "everyopcode, IPv6");
        let count = titles.len();
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), count);
    }
}
