//! A program that opens the XRC domain of a file, through a descriptor that gives rights to the
//! file or through one that does not.
//!
//! `tests/users.rs` starts it as `opener own FILE` for a user that may read the file, and as
//! `opener other FILE` for a user that may not. The latter succeeds if the system refuses to open
//! the file and the agent refuses an O_PATH descriptor of the file with EBADF.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "an intruder does more with it")]
#[path = "intruder/client.rs"]
mod client;

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};

use abi::Errno;
use abi::command::{legacy, number};
use abi::xrc::{OpenXrcd, OpenXrcdAnswer, XrcdOut};
use client::Client;
use engine::Control;
use rustix::fs::{Mode, OFlags, open};

/// O_CREAT, in the encoding of OPEN_XRCD.
const CREATE: u32 = 0o100;

fn domain(file: &OwnedFd) -> Result<(), engine::Error> {
    let client = Client::open(&engine::rundir::default())?;
    let body = OpenXrcd { response: 1, fd: 7, oflags: CREATE };
    let request = legacy(number::OPEN_XRCD, &body, &[], size_of::<OpenXrcdAnswer>() + size_of::<XrcdOut>());
    client.control.call(&request, &[file.as_fd()]).map(drop)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, path] = words.as_slice() else { return Err("usage: opener own|other FILE".into()) };
    let opened = |flags: OFlags| open(path.as_str(), flags | OFlags::CLOEXEC, Mode::empty());
    if role == "own" {
        domain(&opened(OFlags::RDONLY)?).map_err(|error| error.reason)?;
        println!("opener: the domain is open");
        return Ok(());
    }
    let plain = opened(OFlags::RDONLY).err().ok_or("the file can be opened")?;
    let refusal = domain(&opened(OFlags::PATH)?).err().ok_or("an O_PATH descriptor opens the domain")?;
    println!("opener: 2 tries, 2 refusals: {plain}; {}", refusal.reason);
    if refusal.errno == Errno::EBADF { Ok(()) } else { Err(format!("{}: {}", refusal.errno, refusal.reason).into()) }
}
