//! Queue memory whose lock a program holds. The kernel holds the lock of a file in memory while it
//! copies what a program writes to it. If the program writes from a mapping of a FUSE file, the copy
//! takes as long as the program likes. The agent returns freed pages of this memory to the system,
//! which needs the lock. Meanwhile it continues to serve.

use std::os::fd::OwnedFd;

use abi::command::{legacy, number};
use abi::cq::{DestroyCq, DestroyCqAnswer};
use abi::queue::Mapping;

use crate::common::Client;
use crate::common::fuse::{Server, copy_page_of, request};
use crate::common::hostile::{HOSTILE, as_user, for_everybody, in_time, serves, serves_another};

/// A CQ whose pages are returned to the system: more than 1 MiB.
const CQE: u32 = 16_384;

fn destroy_cq(client: &mut Client, cq: u32) {
    let body = DestroyCq { response: 1, cq_handle: cq, reserved: 0 };
    let answer = client.call(&legacy(number::DESTROY_CQ, &body, &[], size_of::<DestroyCqAnswer>()));
    assert_eq!(answer.status, 0, "{}", answer.reason());
}

/// Creates CQs until one shares its region with the one before. Returns its handle, its place, and
/// the file of the region.
fn second_of_region(client: &mut Client) -> (u32, Mapping, OwnedFd) {
    let mut file = None;
    loop {
        let (cq, out, mut fds) = client.create_cq(CQE);
        match (fds.pop(), file) {
            (None, Some(file)) => return (cq, out.mapping, file),
            (region, _) => file = region,
        }
    }
}

#[test]
fn a_program_that_writes_to_its_queue_memory_holds_up_nobody_else() {
    let Some(agent) = for_everybody() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let Some(server) = Server::start(place.path(), request::READ) else { return };
    let mut client = as_user(HOSTILE, || agent.client());
    let (cq, freed, file) = second_of_region(&mut client);
    copy_page_of(&server, move |page| rustix::io::pwrite(&file, page, 0));
    let mut client = in_time(
        move || {
            destroy_cq(&mut client, cq);
            client
        },
        "the agent hangs when it frees memory",
    );
    serves(&agent, "a write to queue memory");
    serves_another(&agent, "a write to queue memory");
    drop(server);
    let uses_it_again = move || {
        while {
            let (cq, out, _) = client.create_cq(CQE);
            destroy_cq(&mut client, cq);
            (out.mapping.region, out.mapping.offset) != (freed.region, freed.offset)
        } {}
    };
    in_time(uses_it_again, "the memory never comes back");
}
