//! Whether a program or one of its descendants waits for connections, with a TCP socket or with an
//! id of rdma_cm. This module does not wait itself. The principal function is [`any`].

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use rustix::process::Pid;

use super::descendants::Descendants;
use crate::admin::Connection;

/// The state of a listening socket in /proc/net/tcp.
const LISTEN: &str = "0A";

/// Whether `pid` or a descendant listens.
pub(super) fn any(pid: Pid, run_dir: &Path) -> bool {
    let tree = Descendants::of(pid).list();
    tree.iter().any(|pid| listens_tcp(*pid)) || listens_cm(&tree, run_dir)
}

fn listens_tcp(pid: u32) -> bool {
    let sockets = sockets(pid);
    !sockets.is_empty()
        && ["tcp", "tcp6"].iter().any(|table| {
            let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
            table.lines().filter_map(listening).any(|inode| sockets.contains(inode))
        })
}

/// The inode of a row about a listening socket.
fn listening(row: &str) -> Option<&str> {
    let words: Vec<&str> = row.split_whitespace().collect();
    (*words.get(3)? == LISTEN).then(|| words.get(9).copied())?
}

/// The inodes of the sockets that a process has open.
fn sockets(pid: u32) -> HashSet<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.to_str()?.to_owned()));
    targets.filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect()
}

fn listens_cm(tree: &[u32], run_dir: &Path) -> bool {
    let answer = Connection::open(run_dir).ok().and_then(|connection| connection.ask("show").ok()).unwrap_or_default();
    let ids = answer["manager"]["ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_tree =
        |pid: &serde_json::Value| pid.as_u64().is_some_and(|pid| tree.iter().any(|one| u64::from(*one) == pid));
    ids.iter().any(|id| id["stage"] == "listening" && of_tree(&id["pid"]))
}

#[cfg(test)]
mod tests {
    use super::{listening, listens_tcp};
    use std::net::TcpListener;

    #[test]
    fn only_listening_sockets_count() {
        let row = |state: &str| {
            format!(
                "   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000 100 0 0 10 0"
            )
        };
        assert_eq!((listening(&row("0A")), listening(&row("01"))), (Some("12345"), None));
        assert_eq!(
            listening(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
            ),
            None
        );
    }

    #[test]
    fn this_process_listens_as_long_as_it_has_the_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        assert!(listens_tcp(std::process::id()));
        drop(listener);
    }
}
