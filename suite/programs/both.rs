//! A process with two engines: this half uses the crate, and the library whose path it is given
//! (`both.c`) uses the C library that `softhca run` puts first. A queue pair of each talks with the
//! other's, and both see the memory that the C half loses.

use std::error::Error;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use softhca::Endpoint;

const ROUNDS: u64 = 100;
const RTLD_NOW: c_int = 2;

// SAFETY: both are the C library's own, with these types.
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `int both_play(int fd)`.
type Play = unsafe extern "C" fn(c_int) -> c_int;

fn main() -> Result<(), Box<dyn Error>> {
    let library = CString::new(std::env::args().nth(1).ok_or("both-engines LIBRARY")?)?;
    let (mut here, there) = UnixStream::pair()?;

    let device = softhca::open()?;
    let (pd, sent, received) = (device.pd()?, device.cq(8)?, device.cq(8)?);
    let qp = pd.reliable(&sent).receive_cq(&received).mtu(softhca::Mtu::B1024).build()?;
    qp.receive(0, pd.buffer(8)?)?;

    // SAFETY: a name that ends with a zero; what the library does when it is loaded is to load the
    // verbs library.
    let library = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
    assert!(!library.is_null(), "the library cannot be loaded");
    // SAFETY: a library that is loaded, and never unloaded; a name that ends with a zero.
    let play = unsafe { dlsym(library, c"both_play".as_ptr()) };
    assert!(!play.is_null(), "the library has no both_play");
    // SAFETY: `both.c` defines it so.
    let play = unsafe { std::mem::transmute::<*mut c_void, Play>(play) };
    // SAFETY: it asks for nothing but an open descriptor, which the thread owns.
    let other = std::thread::spawn(move || unsafe { play(there.as_raw_fd()) });

    here.write_all(&qp.endpoint().to_bytes())?;
    let mut peer = [0; Endpoint::LEN];
    here.read_exact(&mut peer)?;
    let qp = qp.connect(&Endpoint::from_bytes(&peer)?)?;
    here.write_all(&[1])?;
    here.read_exact(&mut [0])?;

    let mut buffer = pd.buffer(8)?;
    for round in 0..ROUNDS {
        buffer.copy_from_slice(&round.to_ne_bytes());
        qp.send(round, buffer)?;
        buffer = sent.wait()?.ok()?.into_buffer();
        let came = received.wait()?.ok()?;
        assert_eq!(came.data(), (round + 1).to_ne_bytes());
        qp.receive(round, came.into_buffer())?;
    }
    here.write_all(&[1])?;
    here.read_exact(&mut [0])?;
    assert_eq!(other.join().map_err(|_| "the C half panicked")?, 0);
    println!("{ROUNDS} rounds between two engines of one process");
    Ok(())
}
