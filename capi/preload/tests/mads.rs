//! Tests the nodes of management datagrams with a program under the redirector and an agent that
//! answers by the contract of [`abi::umad`]. Each test starts this test program again as that
//! program, which runs [`program`].

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::FromRawFd;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use abi::Record;
use abi::umad::{
    DATAGRAM, FileReply, FileRequest, MESSAGE_MAX, NODE, PIECE, RegisterAgent, RegisterAgent2, SHORT_HEADER, UserMad,
    ioctl, kind, parse,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    send, socket_with,
};

const UMAD: &str = "/dev/infiniband/umad0";
const ISSM: &str = "/dev/infiniband/issm0";
const LONG_HEADER: usize = size_of::<UserMad>();
const KEY: [u8; 16] = *b"sixteen bytes :)";
/// The datagram of a message in several packets.
const LONG: usize = 3 * PIECE + 77;
/// A descriptor that stays open over `exec`.
const INHERITED: i32 = 99;
/// A message with this id makes the agent close the file.
const LAST: u32 = 9;

/// The agent. It has one file, and sends to the file what was written.
struct Agent {
    listener: OwnedFd,
    file: Option<OwnedFd>,
    /// The length of the file's headers.
    header: usize,
}

impl Agent {
    fn at(path: &Path) -> Self {
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        Self { listener, file: None, header: SHORT_HEADER }
    }

    fn serve(mut self) {
        let mut room = vec![0; 2 * PIECE];
        while let Ok(connection) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let (length, _) = recv(&connection, &mut room[..], RecvFlags::empty()).unwrap();
            // A program that gives a bad address sends nothing.
            let Some((request, rest)) = parse(&room[..length]) else { continue };
            let mut message = rest.to_vec();
            while request.kind == kind::WRITE && message.len() < request.number as usize {
                let (length, _) = recv(&connection, &mut room[..], RecvFlags::empty()).unwrap();
                message.extend_from_slice(&room[..length]);
            }
            let (status, result) = self.answered(&request, &message);
            let answer = [FileReply { status, value: self.header as u32 }.bytes(), &result].concat();
            send(&connection, &answer, SendFlags::NOSIGNAL).unwrap();
            if request.kind == kind::OPEN_MADS {
                self.file = Some(connection);
            }
            if request.kind == kind::WRITE {
                self.echo(message);
            }
        }
    }

    /// Sends a message of the program back to it.
    fn echo(&mut self, mut message: Vec<u8>) {
        let length = message.len() as u32;
        message[16..20].copy_from_slice(&length.to_ne_bytes());
        for piece in message.chunks(PIECE) {
            send(self.file.as_ref().expect("a file"), piece, SendFlags::NOSIGNAL).unwrap();
        }
        if message.starts_with(&LAST.to_ne_bytes()) {
            self.file = None;
        }
    }

    fn answered(&mut self, request: &FileRequest, rest: &[u8]) -> (i32, Vec<u8>) {
        let is_call = matches!(request.kind, kind::IOCTL | kind::WRITE | kind::HEADER);
        assert_eq!(request.key, if is_call { KEY } else { [0; 16] });
        match (request.kind, request.number) {
            (kind::OPEN_MADS, 0) => {
                self.header = SHORT_HEADER;
                (0, KEY.into())
            }
            (kind::OPEN_MADS, _) => (-libc::ENODEV, Vec::new()),
            (kind::OPEN_MANAGER, 0) if request.nonblocking == 1 => (-libc::EAGAIN, Vec::new()),
            (kind::OPEN_MANAGER, 0) => (0, Vec::new()),
            (kind::IOCTL, ioctl::REGISTER_AGENT) => {
                let registration = RegisterAgent::read(rest).expect("an argument");
                (0, RegisterAgent { id: 3, ..registration }.bytes().into())
            }
            (kind::IOCTL, ioctl::REGISTER_AGENT2) => {
                let registration = RegisterAgent2::read(rest).expect("an argument");
                (-libc::EINVAL, RegisterAgent2 { flags: registration.flags & 1, ..registration }.bytes().into())
            }
            (kind::IOCTL, ioctl::UNREGISTER_AGENT) => {
                assert_eq!(rest, 3_u32.to_ne_bytes());
                (0, rest.into())
            }
            (kind::IOCTL, ioctl::ENABLE_PKEY) => {
                self.header = LONG_HEADER;
                (0, Vec::new())
            }
            (kind::WRITE, length) if length as usize == rest.len() => (0, Vec::new()),
            (kind::HEADER, 0) => (0, Vec::new()),
            other => panic!("{other:?}"),
        }
    }
}

/// The library. Cargo does not build it for the tests, because they do not link it.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).expect("target/debug/deps/mads");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "--package", "softhca-preload", "--target-dir"]).arg(target);
    assert!(build.status().unwrap().success(), "the library is built");
    target.join("debug/libsofthca_preload.so")
}

/// A run directory with a mirror.
fn run_directory(name: &str) -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let run = scratch.path().join(name);
    fs::create_dir_all(run.join("sys/dev/infiniband")).unwrap();
    fs::create_dir_all(run.join("sys/class/infiniband_mad")).unwrap();
    fs::write(run.join("sys/class/infiniband_mad/abi_version"), "5\n").unwrap();
    for node in ["umad0", "umad1", "issm0"] {
        symlink("/dev/null", run.join("sys/dev/infiniband").join(node)).unwrap();
    }
    (scratch, run)
}

/// Runs a part of [`program`] with the run directory.
#[track_caller]
fn must_run(part: &str, run: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--ignored", "--nocapture"]);
    command.env("LD_PRELOAD", library()).env("SOFTHCA_DIR", run).env("PART", part);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{part}: {output:?}");
}

#[test]
fn programs_register_write_and_read_datagrams() {
    let (_scratch, run) = run_directory("run");
    let agent = Agent::at(&run.join(NODE));
    thread::spawn(|| agent.serve());
    for part in ["opening", "requests", "messages", "blocking", "threads", "vectors", "exec"] {
        must_run(part, &run);
    }
}

#[test]
fn a_run_directory_with_a_long_name() {
    let (_scratch, run) = run_directory(&"long".repeat(40));
    // Sockets have short names.
    let short = run.with_file_name("short");
    symlink(&run, &short).unwrap();
    let agent = Agent::at(&short.join(NODE));
    thread::spawn(|| agent.serve());
    must_run("opening", &run);
}

#[test]
fn without_an_agent_nodes_have_no_device() {
    let (_scratch, run) = run_directory("run");
    must_run("alone", &run);
}

/// What runs under the redirector.
#[test]
#[ignore = "the other tests run it as their program"]
fn program() {
    match std::env::var("PART").as_deref() {
        Ok("opening") => opening(),
        Ok("requests") => requests(),
        Ok("messages") => messages(),
        Ok("blocking") => blocking(),
        Ok("threads") => threads(),
        Ok("vectors") => vectors(),
        Ok("exec") => exec(),
        Ok("inherited") => inherited(),
        Ok("alone") => {
            assert_eq!(errno(&open(UMAD, 0)), libc::ENXIO);
            assert_eq!(errno(&open("/dev/infiniband/umad7", 0)), libc::ENOENT);
        }
        other => panic!("{other:?}"),
    }
}

fn open(path: &str, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn errno<T>(result: &io::Result<T>) -> i32 {
    result.as_ref().err().and_then(io::Error::raw_os_error).unwrap_or(0)
}

fn control<T>(file: &File, request: u32, argument: *mut T) -> io::Result<i32> {
    // SAFETY: the argument is NULL or a place of the request's type.
    let value = unsafe { libc::ioctl(file.as_raw_fd(), request.into(), argument) };
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// A message as the agent sends it back.
fn echoed(mut message: Vec<u8>) -> Vec<u8> {
    let length = message.len() as u32;
    message[16..20].copy_from_slice(&length.to_ne_bytes());
    message
}

/// A message with this datagram.
fn message(id: u32, header: usize, datagram: usize) -> Vec<u8> {
    let mut message =
        [UserMad { id, ..UserMad::default() }.bytes().get(..header).unwrap(), &vec![7; datagram]].concat();
    let last = message.len() - 1;
    message[last] = 1;
    message
}

fn opening() {
    assert_eq!(fs::read_to_string("/sys/class/infiniband_mad/abi_version").unwrap(), "5\n");
    for (path, minor) in [(UMAD, 0), (ISSM, 64)] {
        let metadata = fs::symlink_metadata(path).unwrap();
        assert!(metadata.file_type().is_char_device());
        assert_eq!(metadata.rdev(), libc::makedev(231, minor));
    }
    let flags = |file: &File| {
        let descriptor = rustix::io::fcntl_getfd(file).unwrap();
        (rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::NONBLOCK), descriptor.bits() != 0)
    };
    assert_eq!(flags(&open(UMAD, 0).unwrap()), (false, true), "the standard library asks for O_CLOEXEC");
    assert_eq!(flags(&open(UMAD, libc::O_NONBLOCK).unwrap()), (true, true));
    assert_eq!(errno(&open("/dev/infiniband/umad1", 0)), libc::ENODEV);
    assert_eq!(errno(&open("/dev/infiniband/umad7", 0)), libc::ENOENT);
    assert_eq!(errno(&open(UMAD, libc::O_DIRECTORY)), libc::ENOTDIR);
    open(ISSM, 0).unwrap();
    assert_eq!(errno(&open(ISSM, libc::O_NONBLOCK)), libc::EAGAIN);
}

fn requests() {
    let umad = open(UMAD, 0).unwrap();
    let mut registration = RegisterAgent { mgmt_class: 3, ..RegisterAgent::default() };
    assert_eq!(control(&umad, ioctl::REGISTER_AGENT, &raw mut registration).unwrap(), 0);
    assert_eq!((registration.id, registration.mgmt_class), (3, 3));
    let mut second = RegisterAgent2 { flags: 5, ..RegisterAgent2::default() };
    assert_eq!(errno(&control(&umad, ioctl::REGISTER_AGENT2, &raw mut second)), libc::EINVAL);
    assert_eq!(second.flags, 1, "the known flags");
    let mut id = 3_u32;
    control(&umad, ioctl::UNREGISTER_AGENT, &raw mut id).unwrap();
    assert_eq!(errno(&control(&umad, ioctl::REGISTER_AGENT, std::ptr::null_mut::<u8>())), libc::EFAULT);
    assert_eq!(errno(&control(&umad, 0x1b77, &raw mut id)), libc::ENOTTY);
    assert_eq!(errno(&control(&umad, libc::TCGETS as u32, [0_u8; 64].as_mut_ptr())), libc::ENOTTY);
    // Another file with the descriptor of a closed one.
    let number = umad.as_raw_fd();
    drop(umad);
    let (reader, mut writer) = io::pipe().unwrap();
    assert!(reader.as_raw_fd() == number || writer.as_raw_fd() == number);
    writer.write_all(b"through").unwrap();
    let mut read = [0; 7];
    (&reader).read_exact(&mut read).unwrap();
    assert_eq!(&read, b"through");
}

fn messages() {
    let mut umad = open(UMAD, libc::O_NONBLOCK).unwrap();
    let mut room = vec![0; LONG_HEADER + LONG];
    assert_eq!(errno(&umad.read(&mut room)), libc::EAGAIN);
    assert_eq!(errno(&umad.write(&message(0, SHORT_HEADER, 35))), libc::EINVAL);
    umad.write_all(&message(0, SHORT_HEADER, 36)).unwrap();
    let mut answer = [rustix::event::PollFd::new(&umad, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut answer, None).unwrap();
    assert_eq!(umad.read(&mut room).unwrap(), SHORT_HEADER + 36);
    control(&umad, ioctl::ENABLE_PKEY, std::ptr::null_mut::<u8>()).unwrap();
    assert_eq!(errno(&umad.write(&message(0, LONG_HEADER, 35))), libc::EINVAL);
    assert_eq!(errno(&umad.write(&message(0, LONG_HEADER, MESSAGE_MAX + 1))), libc::EINVAL);
    for datagram in [DATAGRAM, 2000, PIECE - LONG_HEADER, LONG] {
        let sent = echoed(message(4, LONG_HEADER, datagram));
        assert_eq!(umad.write(&sent).unwrap(), sent.len());
        // It can be written to at once, and read from when the answer has come.
        for event in [rustix::event::PollFlags::OUT, rustix::event::PollFlags::IN] {
            let mut polled = [rustix::event::PollFd::new(&umad, event)];
            rustix::event::poll(&mut polled, None).unwrap();
            assert!(polled[0].revents().contains(event));
        }
        let first = LONG_HEADER + DATAGRAM;
        assert_eq!(errno(&umad.read(&mut room[..LONG_HEADER - 1])), libc::EINVAL);
        assert_eq!(errno(&umad.read(&mut room[..first - 1])), libc::EINVAL);
        if datagram > DATAGRAM {
            let mut small = vec![0; sent.len() - 1];
            assert_eq!(errno(&umad.read(&mut small)), libc::ENOSPC);
            assert!(small[..first] == sent[..first] && small[first..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(umad.read(&mut room).unwrap(), sent.len());
        assert!(room[..sent.len()] == sent);
    }
    umad.write_all(&message(LAST, LONG_HEADER, DATAGRAM)).unwrap();
    assert_eq!(umad.read(&mut room).unwrap(), LONG_HEADER + DATAGRAM);
    assert_eq!(errno(&umad.read(&mut room)), libc::EIO, "the agent has closed the file");
}

fn blocking() {
    let umad = open(UMAD, 0).unwrap();
    let mut room = [0; LONG_HEADER + DATAGRAM];
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            (&umad).write_all(&message(1, SHORT_HEADER, DATAGRAM)).unwrap();
        });
        assert_eq!((&umad).read(&mut room).unwrap(), SHORT_HEADER + DATAGRAM);
    });
}

/// Duplicates are the same file, and each piece of `readv` and `writev` is a message.
fn vectors() {
    let umad = open(UMAD, 0).unwrap();
    control(&umad, ioctl::ENABLE_PKEY, std::ptr::null_mut::<u8>()).unwrap();
    let first = File::from(umad.as_fd().try_clone_to_owned().unwrap());
    drop(umad);
    // SAFETY: numbers only; the result is a new descriptor.
    let other = unsafe { File::from_raw_fd(libc::dup2(first.as_raw_fd(), 200)) };
    let mut id = 3_u32;
    control(&other, ioctl::UNREGISTER_AGENT, &raw mut id).unwrap();
    let [one, two] = [echoed(message(1, LONG_HEADER, DATAGRAM)), echoed(message(2, LONG_HEADER, DATAGRAM))];
    let pieces = [io::IoSlice::new(&one), io::IoSlice::new(&two)];
    assert_eq!((&other).write_vectored(&pieces).unwrap(), one.len() + two.len());
    let mut room = [[0; LONG_HEADER + DATAGRAM]; 2];
    let [left, right] = &mut room;
    let mut pieces = [io::IoSliceMut::new(left), io::IoSliceMut::new(right)];
    assert_eq!((&first).read_vectored(&mut pieces).unwrap(), one.len() + two.len());
    assert!(room[0][..] == one[..] && room[1][..] == two[..]);
    // A header alone is no message.
    let (head, rest) = one.split_at(LONG_HEADER);
    assert_eq!(errno(&(&other).write_vectored(&[io::IoSlice::new(head), io::IoSlice::new(rest)])), libc::EINVAL);
    assert_eq!(errno(&std::os::unix::fs::FileExt::read_at(&other, &mut [0; 400], 0)), libc::ESPIPE);
}

/// An open file stays one when the program executes another one.
fn exec() {
    let umad = open(UMAD, 0).unwrap();
    control(&umad, ioctl::ENABLE_PKEY, std::ptr::null_mut::<u8>()).unwrap();
    // SAFETY: numbers only; the result is a new descriptor, which stays open.
    assert_eq!(unsafe { libc::dup2(umad.as_raw_fd(), INHERITED) }, INHERITED);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--ignored", "--nocapture"]).env("PART", "inherited");
    panic!("{}", command.exec());
}

fn inherited() {
    // SAFETY: the program before this one has left it open.
    let mut umad = unsafe { File::from_raw_fd(INHERITED) };
    let sent = echoed(message(4, LONG_HEADER, 2000));
    assert_eq!(umad.write(&sent).unwrap(), sent.len());
    let mut room = vec![0; sent.len()];
    assert_eq!(errno(&umad.read(&mut room[..sent.len() - 1])), libc::ENOSPC);
    assert_eq!(umad.read(&mut room).unwrap(), sent.len());
    assert_eq!(room, sent);
    let mut id = 3_u32;
    control(&umad, ioctl::UNREGISTER_AGENT, &raw mut id).unwrap();
}

/// Readers with different room get every message, each one once and whole.
fn threads() {
    const MESSAGES: usize = 400;
    let umad = open(UMAD, 0).unwrap();
    control(&umad, ioctl::ENABLE_PKEY, std::ptr::null_mut::<u8>()).unwrap();
    let sizes = [DATAGRAM, 3000];
    let got: Vec<usize> = thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                scope.spawn({
                    let umad = &umad;
                    move || {
                        let mut room = vec![0; LONG_HEADER + sizes[reader % 2]];
                        let mut got = Vec::new();
                        loop {
                            match (&*umad).read(&mut room) {
                                // The id 5 ends one reader.
                                Ok(length) if room.starts_with(&5_u32.to_ne_bytes()) => {
                                    assert_eq!(length, LONG_HEADER + DATAGRAM);
                                    return got;
                                }
                                Ok(length) => {
                                    assert_eq!(room[length - 1], 1, "the last byte of a message");
                                    got.push(length);
                                }
                                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => thread::yield_now(),
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                })
            })
            .collect();
        for number in 0..MESSAGES {
            (&umad).write_all(&message(0, LONG_HEADER, sizes[number % 2])).unwrap();
        }
        for _ in &readers {
            (&umad).write_all(&message(5, LONG_HEADER, DATAGRAM)).unwrap();
        }
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    for size in sizes {
        assert_eq!(got.iter().filter(|length| **length == LONG_HEADER + size).count(), MESSAGES / 2);
    }
}
