//! The programs for iWARP, and how their connections begin. siw has constants that `linux-vm` makes
//! parameters of the module; on other hosts only the cases with siw's defaults run. The principal
//! type is [`StartUp`].

use harness::Room;

use super::cases::{Case, Ending, Ready, by_address, v6};
use super::side::Serves;
use super::terminates;

/// How both sides begin connections.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartUp {
    /// What a title says of it.
    pub(super) title: &'static str,
    /// The device's `iwarp` in softhca's configuration.
    ours: &'static str,
    /// The parameters of siw: CRCs, the revision, the peer-to-peer model.
    theirs: (bool, u8, bool),
}

/// siw breaks a connection whose private data is longer.
const DATA_MAX: usize = 251;

static USUAL: StartUp = StartUp { title: "", ours: "siw = true", theirs: (false, 2, false) };
static OTHERS: [StartUp; 4] = [
    StartUp { title: ", no CRC", ours: "siw = true, crc = false", theirs: (false, 2, false) },
    StartUp { title: ", siw wants CRCs", ours: "siw = true, crc = false", theirs: (true, 2, false) },
    StartUp { title: ", revision 1", ours: "siw = true, revision = 1", theirs: (false, 1, false) },
    StartUp { title: ", siw wants peer-to-peer", ours: "siw = true", theirs: (false, 2, true) },
];

impl StartUp {
    /// Starts the room's agent with one iWARP device.
    pub(super) fn agent(&self, room: Room) -> Result<Room, String> {
        let file = room.folder().join("agent.toml");
        let text = format!("[[devices]]\ntransport = \"iwarp\"\niwarp = {{ {} }}\n", self.ours);
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        room.with_agent(&["--config", &file.display().to_string()])
    }

    /// The script that sets up siw.
    pub(super) fn on_peer(&self) -> String {
        let (crc, revision, peer_to_peer) = self.theirs;
        let (crc, peer_to_peer) = (u8::from(crc), u8::from(peer_to_peer));
        let set = format!(
            "echo {crc} >mpa_crc_required && echo {revision} >mpa_version && echo {peer_to_peer} >peer_to_peer"
        );
        // A kernel's own siw has no parameters.
        let has_none = if *self == USUAL { "exit 0" } else { "exit 1" };
        format!("cd /sys/module/siw/parameters 2>/dev/null || {has_none}; {set}")
    }
}

fn case(start_up: &'static StartUp, server: &str, client: &str) -> Case {
    Case { ready: Ready::Tcp, start_up: Some(start_up), ..by_address(server, client) }
}

fn perftest(start_up: &'static StartUp, line: &str) -> Case {
    let server = format!("{line} -R -F -p {{port}}");
    case(start_up, &server, &format!("{server} {{server}}"))
}

fn rping(start_up: &'static StartUp) -> Case {
    rping_with(start_up, "-s")
}

fn rping_with(start_up: &'static StartUp, of_server: &str) -> Case {
    let line = "-a {server} -p {port} -C 20 -V -S 3000";
    case(start_up, &format!("rping {of_server} {line}"), &format!("rping -c {line}"))
}

/// All cases.
pub(super) fn all() -> Vec<Case> {
    let at = &USUAL;
    let mut all = vec![rping(at), v6(rping(at))];
    // The server makes its queue pair itself. (rping cannot do so as a client on siw.)
    all.push(rping_with(at, "-s -q"));
    for line in [
        "ib_send_lat -n 100",
        "ib_write_lat -n 100",
        "ib_read_lat -n 100",
        "ib_send_bw -n 50",
        "ib_write_bw -n 50",
        "ib_read_bw -n 50",
    ] {
        all.push(perftest(at, line));
    }
    all.push(case(at, "ucmatose -b {server} -p {port} -c 4 -C 10", "ucmatose -s {server} -p {port} -c 4 -C 10"));
    all.push(case(at, "rdma_server -p {port}", "rdma_client -s {server} -p {port}"));
    let rstream =
        case(at, "rstream -p {port} -S 65536 -C 100 -T v", "rstream -p {port} -S 65536 -C 100 -T v -s {server}");
    // The server closes behind its last message. siw then loses what its socket has not sent, if a
    // grant of the client comes meanwhile, and the client waits forever.
    all.push(Case { only: Some(Serves::Here), ..rstream });
    let rcopy = case(at, "rcopy -p {port}", "rcopy {refusals} {server}:{copy} -p {port}");
    all.push(Case { ending: Ending::Copies, ..rcopy });
    let refusals = |states: [&str; 2], more: &str| {
        let [server, client] = states.map(|state| format!("{{refusals}} -a {{server}} -p {{port}} {state}{more}"));
        case(at, &server, &client)
    };
    let reject = refusals(["-l reject", "-c established"], "");
    all.push(Case { ending: Ending::Says("REJECTED status -104 private not today"), ..reject });
    // The server disconnects: if the client does, Linux's iw_cm may stop with a BUG.
    all.extend([1, DATA_MAX].map(|len| refusals(["-l disconnect", "-c established"], &format!(" -d {len}"))));
    all.extend(terminates::all(at));
    for start_up in &OTHERS {
        // rping's server takes its depth of READs from the request, and revision 1 has none there. So
        // siw's server cannot post its READs.
        let only = (start_up.theirs.1 == 1).then_some(Serves::Here);
        all.push(Case { only, ..rping(start_up) });
        all.extend(["ib_send_bw -n 20", "ib_read_lat -n 50"].map(|line| perftest(start_up, line)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_differ_and_groups_are_whole() {
        let all = all();
        let mut titles: Vec<String> = all.iter().map(Case::title).collect();
        let groups = all.chunk_by(|one, other| one.start_up == other.start_up).count();
        assert_eq!((groups, all.iter().filter(|case| case.start_up.is_none()).count()), (1 + OTHERS.len(), 0));
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), all.len());
    }

    #[test]
    fn only_the_usual_start_up_is_possible_without_parameters() {
        assert!(USUAL.on_peer().contains("exit 0") && OTHERS[0].on_peer().contains("exit 1"));
    }
}
