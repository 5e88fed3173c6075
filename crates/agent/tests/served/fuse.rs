//! Files of a FUSE server that does not answer. fstat(2), fstatfs(2) and each close(2) of such a
//! file wait for the server. In whatever way the agent is made to call them, it continues to serve.

use std::os::fd::{AsFd, OwnedFd};

use crate::common::fuse::{Server, request};
use crate::common::hostile::{HOSTILE, as_user, for_everybody, message, open_xrcd, send, serves, serves_another};
use crate::common::{Client, TestAgent};
use shm::socket::Socket;

/// A way to make the agent use a file. The returned socket is kept open.
type Way = fn(&TestAgent, &OwnedFd) -> Option<Socket>;

fn with_command(agent: &TestAgent, fds: &OwnedFd) -> Option<Socket> {
    let client = agent.client();
    send(&client.socket, &message(&[0xff; 40]), &[fds.as_fd()]).expect("sent");
    Some(client.socket)
}

const WAYS: [(&str, u32, Way); 5] = [
    ("a command that takes none, and no GETATTR", request::GETATTR, with_command),
    ("a command that takes none, and no STATFS", request::STATFS, with_command),
    ("a command that takes none, and no FLUSH", request::FLUSH, with_command),
    ("more than a command may have", request::FLUSH, |agent, fd| {
        let client = agent.client();
        send(&client.socket, &message(&[0xff; 40]), &[fd.as_fd(); 9]).expect("sent");
        Some(client.socket)
    }),
    ("an XRC domain that ends with its context", request::FLUSH, |agent, fd| {
        let mut client = agent.client();
        assert_eq!(client.call_with(&open_xrcd(), &[fd.as_fd()]).status, 0, "any file names a domain");
        None
    }),
];

#[test]
fn a_fuse_server_that_does_not_answer_blocks_no_other_client() {
    for (name, silent, way) in WAYS {
        let Some(agent) = for_everybody() else { return };
        let place = tempfile::tempdir().expect("a directory");
        let Some(server) = Server::start(place.path(), silent) else { return };
        let kept = as_user(HOSTILE, || way(&agent, &server.file));
        server.expect(silent, name);
        serves(&agent, name);
        serves_another(&agent, name);
        drop(kept);
        serves(&agent, &format!("{name}, and the client's end"));
        serves_another(&agent, &format!("{name}, and the client's end"));
        // When the server ends, all calls return, including this test's.
        drop(server);
        as_user(HOSTILE, || {
            let mut client: Client = agent.client();
            assert_eq!(client.call_with(&open_xrcd(), &[place_file().as_fd()]).status, 0, "the user is served again");
        });
    }
}

fn place_file() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("there").into()
}
