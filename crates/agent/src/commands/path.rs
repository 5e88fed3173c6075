//! PATH_RESOLVE: which packets pass the switches from a port to another one. The answers are those
//! of [`crate::objects::paths::Paths`].

use abi::Errno;
use abi::private::{PathResolve, PathResolveAnswer};

use super::{Answer, Call};
use crate::objects::paths::Question;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// PATH_RESOLVE.
pub fn resolve(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let PathResolve { dgid, to_device, to_port, port, dlid, hop_limit, traffic_class, .. } = call.body()?;
    let context = world.context(call.context)?;
    if context.engine.is_none() {
        return refuse(Errno::EINVAL, "only an engine asks for paths; this client has none");
    }
    let device = context.device;
    if !world.tables.paths.matter {
        return refuse(Errno::EINVAL, "there are no switches, so every active port reaches every other one");
    }
    let question = Question {
        from: (device, port),
        to: (to_device as usize, to_port),
        dlid,
        route: (dgid, hop_limit, traffic_class),
    };
    let epoch = world.board.path_epoch();
    let Some(path) = world.tables.paths.path(call.context, &question) else {
        return refuse(Errno::EAGAIN, "the path is being found; ask again");
    };
    let mut narrowest = [0; 64];
    narrowest.iter_mut().zip(path.narrowest.bytes()).for_each(|(to, byte)| *to = byte);
    Ok(call.answer(&PathResolveAnswer {
        levels: path.levels.into(),
        mtu: path.mtu.into(),
        pkeys: std::array::from_fn(|word| (path.pkeys >> (32 * word)) as u32),
        epoch,
        router: path.router.0,
        router_sl: path.router.1,
        narrowest,
        links: path.links.there,
        links_both_ways: path.links.both_ways,
        ..PathResolveAnswer::default()
    }))
}
