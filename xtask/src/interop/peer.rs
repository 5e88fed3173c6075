//! The host with the driver: runs commands there, and reads its properties. The principal type is
//! [`Peer`].

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

use harness::{HANG, Room};

/// Bytes of a file in one command.
const PIECE: usize = 8000;

/// A host with the driver.
pub(super) struct Peer {
    words: Vec<String>,
    /// The IPv4 and the IPv6 address.
    pub(super) addresses: [String; 2],
    /// The indexes of these addresses in the host's GID table, with RoCE.
    pub(super) gids: Option<[u64; 2]>,
    /// The network interface of the device.
    interface: String,
}

/// Prints the first GIDs of each device with their indexes. A table has a thousand entries.
const GIDS: &str = "for place in 0 1 2 3 4 5 6 7 8 9; do for device in /sys/class/infiniband/*; do \
    echo $place $(cat $device/ports/1/gids/$place); done; done";

impl Peer {
    /// Checks that the host answers and has everything that is needed.
    pub(super) fn meet(room: &Room, words: &str, addresses: [&String; 2], has_gids: bool) -> Result<Peer, String> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err("--peer-exec is empty".to_owned());
        }
        let mut peer = Peer { words, addresses: addresses.map(Clone::clone), gids: None, interface: String::new() };
        if has_gids {
            peer.gids = Some(peer.find_gids(room)?);
        }
        let interface = format!("ip -o -4 address show | grep -F ' {}/' | head -n 1", addresses[0]);
        let line = peer.ask(room, &interface)?;
        line.split_whitespace().nth(1).unwrap_or_default().clone_into(&mut peer.interface);
        Ok(peer)
    }

    fn find_gids(&self, room: &Room) -> Result<[u64; 2], String> {
        let table = self.ask(room, GIDS)?;
        let mut gids = [0; 2];
        for (gid, address) in gids.iter_mut().zip(&self.addresses) {
            *gid = place(&table, address)?.ok_or_else(|| {
                format!("the peer has no GID for {address}: is rdma_rxe loaded, and a link added there?\n{table}")
            })?;
        }
        Ok(gids)
    }

    /// A command that runs a shell script on the host.
    pub(super) fn command(&self, script: &str) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(script);
        command
    }

    /// Runs a shell script on the host and returns its output.
    pub(super) fn ask(&self, room: &Room, script: &str) -> Result<String, String> {
        let outcome = room.start(self.command(script))?.wait(HANG)?;
        if outcome.succeeded() { Ok(outcome.output) } else { Err(outcome.told()) }
    }

    /// Copies a program to the host.
    pub(super) fn put(&self, room: &Room, program: &Path, place: &str) -> Result<(), String> {
        let outcome = room.start(process_of("base64", &["-w", "0", &program.display().to_string()]))?.wait(HANG)?;
        self.ask(room, &format!(": >{place}.64"))?;
        for piece in outcome.output.as_bytes().chunks(PIECE) {
            self.ask(room, &format!("echo {} >>{place}.64", String::from_utf8_lossy(piece)))?;
        }
        self.ask(room, &format!("tr -d '\\n' <{place}.64 | base64 -d >{place} && chmod 755 {place}")).map(drop)
    }

    /// The host's kernel.
    pub(super) fn kernel(&self, room: &Room) -> Result<String, String> {
        Ok(self.ask(room, "uname -sr")?.trim().to_owned())
    }

    /// From now on the host's interface loses this percentage of the packets that it sends; 0 for
    /// none.
    pub(super) fn lose(&self, room: &Room, percent: u32) -> Result<(), String> {
        let Self { interface, .. } = self;
        let mut script = format!("tc qdisc del dev {interface} root 2>/dev/null || true");
        if percent > 0 {
            let _ = write!(script, "; tc qdisc add dev {interface} root netem loss {percent}%");
        }
        self.ask(room, &script).map(drop)
    }

    /// The number of packets that the host has lost by [`Peer::lose`].
    pub(super) fn lost(&self, room: &Room) -> Result<u64, String> {
        let text = self.ask(room, &format!("tc -s qdisc show dev {}", self.interface))?;
        let count = text.split_once("(dropped ").and_then(|(_, rest)| rest.split([',', ' ']).next()?.parse().ok());
        count.ok_or(text)
    }
}

fn process_of(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// The index of an address in a list of GIDs.
fn place(table: &str, address: &str) -> Result<Option<u64>, String> {
    let address: IpAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
    let gid = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let same = |line: &&str| line.split_whitespace().nth(1).and_then(|text| text.parse::<Ipv6Addr>().ok()) == Some(gid);
    Ok(table.lines().find(same).and_then(|line| line.split_whitespace().next()?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_found_by_its_address() {
        let table = "0 fe80:0000:0000:0000:5054:00ff:fe77:0001\n1 0000:0000:0000:0000:0000:ffff:0a4d:000b\n2\n";
        assert_eq!(place(table, "10.77.0.11"), Ok(Some(1)));
        assert_eq!(place(table, "fe80::5054:ff:fe77:1"), Ok(Some(0)));
        assert_eq!(place(table, "fd77::11"), Ok(None));
        assert!(place(table, "peer").is_err());
    }
}
