//! Tests of `softhca run --pair`: the client starts when the server listens, both sides end
//! together with one exit code, and no process is left behind.
//!
//! The programs here are small and use TCP. They do not load the library beside them. The suite has
//! real verbs programs.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const HANG: Duration = Duration::from_secs(60);

/// `peer serve IP CODE` listens after a delay, accepts one connection, and ends with CODE when the
/// other side has ended. `peer dial IP` tries to connect once. `peer stay IP` listens and never
/// ends, whatever signal asks it to.
const PEER: &str = r#"
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **words) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(17517)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    char byte;
    inet_pton(AF_INET, words[2], &at.sin_addr);
    if (!strcmp(words[1], "dial")) {
        if (connect(fd, (struct sockaddr *)&at, sizeof at)) return 9;
        puts("dialled");
        return count > 3 ? atoi(words[3]) : 0;
    }
    usleep(300000);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1)) return 8;
    if (!strcmp(words[1], "stay")) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    fd = accept(fd, 0, 0);
    while (read(fd, &byte, 1) > 0) {}
    fputs("served", stderr);
    return atoi(words[3]);
}
"#;

struct Place {
    folder: TempDir,
    address: String,
}

impl Place {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let pid = std::process::id();
        let address =
            format!("127.{}.{}.{}", 20 + pid / 250 % 200, 1 + pid % 250, NUMBER.fetch_add(1, Ordering::Relaxed));
        let place = Self { folder, address };
        fs::create_dir_all(place.path("bin")).expect("made");
        fs::create_dir_all(place.path("lib/softhca")).expect("made");
        fs::hard_link(env!("CARGO_BIN_EXE_softhca"), place.path("bin/softhca")).expect("linked");
        build(&place.path("lib/softhca/libibverbs.so.1"), "int nothing;\n", &["-shared", "-fPIC"]);
        build(&place.path("peer"), PEER, &[]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn softhca(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/softhca"));
        command.args(words).env("SOFTHCA_DIR", self.path("run")).current_dir(self.folder.path());
        for name in ["SOFTHCA_LOG", "SOFTHCA_FAULTS", "LD_LIBRARY_PATH", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a pair to its end.
    fn pair(&self, server: &str, client: &str) -> Output {
        let output = self.command(server, client).output().expect("it starts");
        self.leaves_nothing();
        output
    }

    fn command(&self, server: &str, client: &str) -> Command {
        let fill = |words: &str| words.replace("IP", &self.address);
        let (server, client) = (fill(server), fill(client));
        let words: Vec<&str> = ["run", "--pair", "--"].into_iter().chain(server.split(' ')).collect();
        let words: Vec<&str> = words.into_iter().chain(["--"]).chain(client.split(' ')).collect();
        self.softhca(&words)
    }

    /// The running programs of this place.
    fn peers(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let peer = self.path("peer");
        let is_peer = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|file| file == peer);
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_peer).collect()
    }

    #[track_caller]
    fn leaves_nothing(&self) {
        let started = Instant::now();
        while !self.peers().is_empty() {
            assert!(started.elapsed() < HANG, "{:?} are left", self.peers());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a pair whose server listens and does not end, and whose client waits for its input.
    fn lasting(&self) -> (Child, ChildStdin, BufReader<ChildStdout>) {
        let mut command = self.command("./peer stay IP", "cat");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut input = child.stdin.take().expect("piped");
        std::io::Write::write_all(&mut input, b"hello\n").expect("written");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("read");
        assert_eq!(line, "client: hello\n");
        (child, input, output)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.softhca(&["agent", "--stop"]).output();
    }
}

fn build(file: &Path, text: &str, more: &[&str]) {
    let source = file.with_extension("c");
    fs::write(&source, text).expect("written");
    let output = Command::new("gcc").arg("-o").args([file, &source]).args(more).output().expect("gcc runs");
    assert!(output.status.success(), "{output:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_client_starts_when_the_server_listens_and_every_line_has_its_side() {
    let place = Place::new();
    let output = place.pair("./peer serve IP 0", "./peer dial IP");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("client: dialled\n".to_owned(), "server: served\n".to_owned())
    );
}

#[test]
fn a_server_that_another_program_starts_is_seen_too() {
    let place = Place::new();
    let script = place.path("script");
    fs::write(&script, format!("sleep 0 && ./peer serve {} 0; exit $?\n", place.address)).expect("written");
    let output = place.pair("sh script", "./peer dial IP");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "client: dialled\n".to_owned()), "{output:?}");
}

#[test]
fn the_exit_code_is_the_clients_or_the_servers_if_only_that_failed() {
    let place = Place::new();
    for (server, client, code) in [("0", "0", 0), ("0", "7", 7), ("5", "0", 5), ("5", "7", 7)] {
        let output = place.pair(&format!("./peer serve IP {server}"), &format!("./peer dial IP {client}"));
        assert_eq!(output.status.code(), Some(code), "{server} {client}: {output:?}");
    }
}

#[test]
fn a_server_that_ends_early_is_told_and_no_client_starts() {
    let place = Place::new();
    for (server, code) in [("false", 1), ("true", 1), ("/no/such/server", 127)] {
        let output = place.pair(server, "./peer dial IP");
        assert_eq!(output.status.code(), Some(code), "{server}: {output:?}");
        assert!(text(&output.stderr).contains("the server ended before it listened"), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn a_server_that_goes_on_is_ended_and_the_code_is_the_clients() {
    let place = Place::new();
    let output = place.pair("./peer stay IP", "./peer dial IP 4");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(
        text(&output.stderr).contains("the server still runs 5 s after the client ended (exit code 4)"),
        "{output:?}"
    );
}

#[test]
fn a_signal_reaches_both_and_ends_them() {
    let place = Place::new();
    let (mut child, _input, _output) = place.lasting();
    kill_process(Pid::from_child(&child), Signal::TERM).expect("sent");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(143));
    place.leaves_nothing();
}

#[test]
fn a_signal_before_the_server_listens_ends_it_and_no_client_starts() {
    let place = Place::new();
    let script = "echo ready; exec sleep 600";
    fs::write(place.path("script"), script).expect("written");
    let mut command = place.command("sh script", "./peer dial IP");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read");
    assert_eq!(line, "server: ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("sent");
    assert_eq!(child.wait().expect("it ends").code(), Some(143));
    line.clear();
    output.read_to_string(&mut line).expect("read");
    assert_eq!(line, "");
    place.leaves_nothing();
}

#[test]
fn a_killed_server_or_client_leaves_nothing_behind() {
    let place = Place::new();
    let (mut child, input, mut output) = place.lasting();
    let server = place.peers();
    assert_eq!(server.len(), 1);
    let server = Pid::from_raw(server[0].cast_signed()).expect("a process");
    kill_process(server, Signal::KILL).expect("sent");
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("read");
    assert_eq!(child.wait().expect("it ends").code(), Some(137));
    place.leaves_nothing();
}

#[test]
fn two_programs_are_needed() {
    let place = Place::new();
    for words in [&["run", "--pair", "--", "true"][..], &["run", "--pair", "--", "true", "--"]] {
        let output = place.softhca(words).output().expect("it starts");
        assert!(
            output.status.code() == Some(125) && text(&output.stderr).contains("SERVER ARGS -- CLIENT ARGS"),
            "{output:?}"
        );
    }
}
