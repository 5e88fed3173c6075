//! The counters of ports in sysfs. Before a program opens one, this library asks the agent to bring
//! them up to date in the mirror.

use crate::connection::Connection;
use crate::entry::{Place, Refusal, Room};
use crate::packet::{self, Memory};

/// The agent's node for such requests.
const NODE: &str = "admin";

/// Asks for the counters of the port, if the path is one of them. Without an answer, the program
/// reads older ones.
pub(crate) fn refresh(place: &Place<'_>) {
    if let Some((device, port)) = place.official.counter() {
        let _ = ask(device, port);
    }
}

fn ask(device: &[u8], port: &[u8]) -> Result<(), Refusal> {
    let connection = Connection::to(NODE, Refusal(libc::ENXIO))?;
    let parts = [br#"{"request":"counters","device":""#, device, br#"","port":"#, port, b"}"];
    let mut room = Room::new();
    let question = room.hold(parts.into_iter().flatten().copied())?;
    packet::send(connection.fd(), question.to_bytes(), Memory::NOTHING)?;
    packet::receive(connection.fd(), &mut [0; 64], Memory::NOTHING).map(drop)
}
