//! A FUSE server that leaves one kind of request about its file unanswered, with the few messages of
//! the protocol that this takes. Principal type: [`Server`].

use std::io::Error;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::UnshareFlags;

use super::hostile::HANG;

/// Numbers of requests (linux/fuse.h).
pub(crate) mod request {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const BATCH_FORGET: u32 = 42;
}

const ROOT: u64 = 1;
const FILE: u64 = 2;
/// The length of the file.
const PAGE: usize = 4096;
/// More bytes than the longest request of this test, with its header.
const REQUEST: usize = 1 << 17;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `struct fuse_attr` of the root or of the file.
fn attributes(node: u64) -> Vec<u8> {
    let mode = if node == ROOT { 0o040_755 } else { 0o100_666 };
    let mut bytes = [node, PAGE as u64, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
    bytes.extend(words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    bytes
}

/// The answer to a request about `node`, or the error.
fn answer(opcode: u32, node: u64) -> Result<Vec<u8>, i32> {
    Ok(match opcode {
        request::INIT => words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        // The kernel must not cache anything about it.
        request::LOOKUP => [[FILE, 0, 0, 0, 0].map(u64::to_le_bytes).concat(), attributes(FILE)].concat(),
        request::GETATTR => [vec![0; 16], attributes(node)].concat(),
        request::OPEN => vec![0; 16],
        request::STATFS => vec![0; 80],
        request::FLUSH | request::RELEASE => Vec::new(),
        _ => return Err(-38),
    })
}

/// A mounted file system with one file.
pub(crate) struct Server {
    /// The server ends when this is dropped, and then all calls return, also the close of the file.
    _stop: OwnedFd,
    seen: Receiver<u32>,
    pub(crate) file: OwnedFd,
}

impl Server {
    /// Starts a server that does not answer the request `silent` about its file. Returns `None` if
    /// that is not possible here.
    pub(crate) fn start(place: &Path, silent: u32) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("skipped: /dev/fuse: {error}");
                return None;
            }
        };
        let for_mount = device.try_clone().expect("a copy");
        let (stop, _stop) = rustix::pipe::pipe().expect("a pipe");
        let (tell, seen) = channel();
        std::thread::spawn(move || serve(&device, &stop, silent, &tell));
        let place = place.to_owned();
        // A thread with its own mounts, which go when the test ends.
        let file = std::thread::spawn(move || open_in(&place, for_mount)).join().expect("no panic");
        match file {
            Ok(file) => Some(Self { _stop, seen, file }),
            Err(error) => {
                eprintln!("skipped: no FUSE file system can be mounted: {error}");
                None
            }
        }
    }

    /// Waits until a call waits for the unanswered request.
    #[track_caller]
    pub(crate) fn expect(&self, opcode: u32, way: &str) {
        while let Ok(seen) = self.seen.recv_timeout(HANG) {
            if seen == opcode {
                return;
            }
        }
        panic!("nobody has asked for {opcode} after {way}");
    }
}

/// Makes the kernel copy a page of the server's file, with `how`. This takes until the server ends.
pub(crate) fn copy_page_of<T>(server: &Server, how: impl FnOnce(&'static [u8]) -> T + Send + 'static) {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { mmap(null_mut(), PAGE, ProtFlags::READ, MapFlags::PRIVATE, &server.file, 0) };
    // SAFETY: the mapping lives as long as the process. Only the kernel reads it, and survives the
    // fault.
    let page = unsafe { std::slice::from_raw_parts(page.expect("a mapping").cast::<u8>(), PAGE) };
    std::thread::spawn(move || drop(how(page)));
    server.expect(request::READ, "a copy of its file");
}

fn open_in(place: &Path, device: OwnedFd) -> Result<OwnedFd, Error> {
    #[expect(deprecated, reason = "the table of descriptors, for which it is unsafe, stays shared")]
    rustix::thread::unshare(UnshareFlags::FS | UnshareFlags::NEWNS)?;
    run(Command::new("mount").args(["--make-rprivate", "/"]))?;
    let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
    let mut mount = Command::new("mount");
    run(mount.args(["-i", "-t", "fuse", "-o", options, "test"]).arg(place).stdin(Stdio::from(device)))?;
    Ok(rustix::fs::open(place.join("file"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn run(command: &mut Command) -> Result<(), Error> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(Error::other(format!("mount: {status}"))) }
}

/// Answers until it is stopped, and reports the requests that it does not answer.
fn serve(device: &OwnedFd, stop: &OwnedFd, silent: u32, tell: &Sender<u32>) {
    let mut bytes = vec![0; REQUEST];
    loop {
        let mut polled = [PollFd::new(device, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        poll(&mut polled, None).expect("polled");
        if !polled[1].revents().is_empty() {
            return;
        }
        let Ok(len) = rustix::io::read(device, &mut bytes) else { continue };
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (opcode, unique, node) = ((number(0) >> 32) as u32, number(8), number(16));
        assert!(len >= 40, "a request has a header");
        if matches!(opcode, request::FORGET | request::INTERRUPT | request::BATCH_FORGET) {
            continue;
        }
        if opcode == silent && node == FILE {
            let _ = tell.send(opcode);
            continue;
        }
        let (error, body) = match answer(opcode, node) {
            Ok(body) => (0, body),
            Err(error) => (error, Vec::new()),
        };
        let header = words(&[16 + body.len() as u32, error.cast_unsigned(), unique as u32, (unique >> 32) as u32]);
        rustix::io::write(device, &[header, body].concat()).expect("answered");
    }
}
