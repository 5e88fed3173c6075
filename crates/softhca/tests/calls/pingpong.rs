//! The ping-pong of examples/, inside one process.

use std::os::unix::net::UnixStream;

use fabric::Fabric;

#[path = "../../../../examples/pingpong.rs"]
#[allow(dead_code, reason = "its main function is for processes")]
mod example;

#[test]
fn the_ping_pong_runs_inside_a_fabric() {
    let fabric = Fabric::start().expect("an agent");
    let (near, far) = (fabric.open().expect("a device"), fabric.open().expect("a device"));
    let (here, there) = UnixStream::pair().expect("two ends");
    std::thread::scope(|threads| {
        let other = threads.spawn(|| example::play(&far, there, false, 1000).map_err(|error| error.to_string()));
        example::play(&near, here, true, 1000).expect("it plays");
        other.join().expect("no panic").expect("it plays");
    });
}
