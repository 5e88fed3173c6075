//! VIOLATION: an engine has dropped a packet with a wrong P_Key or Q_Key, or its packets have no
//! path. The agent only notes it here; [`crate::mads`] tells the subnet manager.

use abi::Errno;
use abi::private::{Violation, violation};

use super::{Answer, Call};
use crate::ids::PortId;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// VIOLATION: tells of a packet. All that the engine says is a claim.
pub fn tell(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let told: Violation = call.body()?;
    let device = world.device_of(call.context);
    device.port(told.port.into())?;
    if !violation::ALL.iter().any(|known| known.value == u64::from(told.kind)) {
        return refuse(Errno::EINVAL, format!("{} is no kind of violation", told.kind));
    }
    let at = PortId { device: device.index, port: told.port };
    match told.kind {
        // It says nothing of the packets, which the engine has counted.
        violation::NO_PATH => {
            world.note_traffic_of(call.context);
            world.tables.traffic.hurry();
        }
        _ => world.note_violation(at, told),
    }
    Ok(Answer::default())
}
