//! XRC targets of several processes: XRC_FIND, XRC_ADOPT and XRC_EVENT, and the choice of a new
//! server when a target's server releases it.
//!
//! A target lives in the engine of one of its holders, at first its creator's. When this holder
//! releases the target or dies, the next holder is offered the target, with its number and with the
//! state that the engine has written down. A target that others can open has a block of numbers to
//! itself, so that the board can name its current engine. The principal function is [`pass_on`].

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use abi::event::{AsyncRecord, kind};
use abi::private::{LaneOut, Push, push};
use abi::qp::{ModifyQp, attr};
use abi::queue::{CONTROL_LEN, QpOut, REV, qp as word};
use abi::target::{TARGET_LEN, XrcAdopt, XrcAdoptAnswer, XrcEvent, XrcFind, XrcFindAnswer};
use abi::{Errno, Refusal};

use super::{Answer, Call, find, xrc};
use crate::closer::Closer;
use crate::ids::ContextId;
use crate::numbers::Grant;
use crate::objects::Qp;
use crate::queue_memory::{Allocation, Block, QueueMemory};
use crate::refusal::{Outcome, by_system, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// Maximum number of targets of all shared domains. Each takes a block of numbers.
const MOST: u32 = 16_384;

/// A number for a target that others can open.
pub fn number(world: &mut World, owner: ContextId) -> Outcome<(u32, Option<Grant>)> {
    shares::room_among(world, owner, "targets of shared XRC domains", MOST, |uid| {
        shares::of(world, uid).map(|context| world.numbers.qpns.apart_of(context)).sum()
    })?;
    let taken = world.numbers.qpns.take_apart(owner);
    let (qpn, grant) = taken.ok_or_else(|| Refusal::new(Errno::ENOMEM, "every QP number is in use"))?;
    Ok((qpn, Some(grant)))
}

/// Gives a target that its server releases to another of its holders, and tells the holder. Returns
/// false if there is no other holder, or no memory.
pub fn pass_on(world: &mut World, owner: ContextId, handle: u32) -> bool {
    let Some(qp) = world.tables.qps.find(owner, handle) else { return false };
    let (qpn, old, offered, domain) = (qp.qpn, qp.block.clone(), qp.offered, qp.domain);
    let has_engine = |context: &ContextId| world.contexts.get(context).is_some_and(|open| open.engine.is_some());
    let heir = world.tables.domains.opened(qpn).map(|(context, _)| context).find(|it| *it != owner && has_engine(it));
    let Some(heir) = heir else { return false };
    // The memory belongs to the old server, which may reuse it and may still write there.
    let copy = match QueueMemory::new(Arc::clone(&world.system), Closer::default()).allocate_apart(TARGET_LEN) {
        Ok(Allocation { block, .. }) => block,
        Err(error) => {
            tracing::warn!(qpn, %error, "an XRC target ends, for it cannot be passed on");
            return false;
        }
    };
    let Some(grant) = world.numbers.qpns.pass_on(qpn, heir) else { return false };
    take_words(|| world.board.show_block(grant), &old, &copy);
    let Some(mut qp) = world.tables.qps.remove(owner, handle) else { return false };
    if let Ok(context) = world.context(owner)
        && !offered
    {
        context.memory.release(&old);
    }
    world.device_of_mut(owner).count_down(Kind::Qp);
    (qp.block, qp.offered, qp.is_left) = (copy, true, true);
    qp.domain = domain.map(|(domain, _)| (domain, 0));
    let Some(place) = world.tables.qps.insert(heir, qp) else {
        world.tables.domains.leave(qpn);
        return true;
    };
    world.device_of_mut(heir).count_up(Kind::Qp);
    for (context, opened) in world.tables.domains.opened(qpn) {
        if let Some(opened) = world.tables.opened.find_mut(context, opened) {
            opened.qp = (heir, place);
        }
    }
    if let Some((domain, _)) = domain {
        world.tables.domains.enter(domain, qpn, heir, place);
    }
    if let Some(engine) = world.contexts.get_mut(&heir).and_then(|context| context.engine.as_mut()) {
        let lane = LaneOut { lane: qpn, ..LaneOut::default() };
        engine.push(Push { kind: push::TARGET, lane, ..Push::default() }, Vec::new());
    }
    true
}

/// Takes the latest state that the server has written down. The server may still be working. It
/// writes its progress down, then checks that the number is still its own, and only then
/// acknowledges to the peer. So `show` must first name the new owner.
fn take_words(show: impl FnOnce(), from: &Block, to: &Block) {
    show();
    // Pairs with the fence in the engine's `Qp::is_served_here`. If the server acknowledged because
    // it did not see the new owner, it wrote its progress before, and the copy contains that
    // progress.
    fence(Ordering::SeqCst);
    copy_words(from, to);
}

fn copy_words(from: &Block, to: &Block) {
    for at in (0..TARGET_LEN).step_by(4) {
        let value = match at {
            word::LANE | word::PEER_ENGINE | word::EVENTS_REPORTED => 0,
            _ => from.read(at),
        };
        to.word(at).store(value, Ordering::Relaxed);
    }
}

/// XRC_FIND: the engine that has an SRQ of a target's domain.
pub fn locate(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let XrcFind { qp_handle, srqn } = call.body()?;
    let (owner, handle) = xrc::resolve(world, call.context, qp_handle);
    let qp = find(&world.tables.qps, owner, handle, Kind::Qp)?;
    let Some((domain, _)) = qp.domain else {
        return refuse(Errno::EINVAL, format!("QP {:#x} is no XRC target", qp.qpn));
    };
    let Some(engine) = world.tables.domains.srq(domain, srqn) else {
        return refuse(Errno::ENOENT, format!("XRC domain {domain} has no SRQ {srqn}"));
    };
    Ok(call.answer(&XrcFindAnswer { engine: engine.0, reserved: 0 }))
}

/// XRC_ADOPT: the context's engine takes over a target that it was offered.
pub fn adopt(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let XrcAdopt { qpn, .. } = call.body()?;
    let owner = call.context;
    let served = world.tables.domains.server(qpn).filter(|(server, _)| *server == owner).map(|(_, handle)| handle);
    let offered = served.filter(|handle| world.tables.qps.find(owner, *handle).is_some_and(|qp| qp.offered));
    let Some(handle) = offered else {
        return refuse(Errno::EINVAL, format!("target QP {qpn:#x} was not offered to this context"));
    };
    let Allocation { block, mapping, fd } = world.context(owner)?.memory.allocate(TARGET_LEN).map_err(by_system)?;
    let Some(qp) = world.tables.qps.find_mut(owner, handle) else { return refuse(Errno::EINVAL, "the QP is gone") };
    copy_words(&qp.block, &block);
    (qp.block, qp.offered) = (block, false);
    let out = QpOut {
        rev: REV,
        qpn,
        mapping,
        sq_offset: CONTROL_LEN as u32,
        rq_offset: CONTROL_LEN as u32,
        ..QpOut::default()
    };
    let domain = qp.domain.map_or(0, |(domain, _)| domain);
    let answer = XrcAdoptAnswer { attributes: attributes(qp, handle), domain, reserved: 0, out };
    Ok(Answer { fds: fd.into_iter().collect(), ..call.answer(&answer) })
}

/// The attributes that the QP has been given so far.
fn attributes(qp: &Qp, handle: u32) -> ModifyQp {
    let kept = &qp.attributes;
    ModifyQp {
        dest: kept.dest,
        qp_handle: handle,
        attr_mask: attr::STATE | attr::ACCESS_FLAGS | attr::PORT | attr::AV | attr::PATH_MTU,
        rq_psn: kept.rq_psn,
        sq_psn: kept.sq_psn,
        dest_qp_num: kept.dest_qp_num,
        qp_access_flags: kept.qp_access_flags,
        pkey_index: kept.pkey_index,
        qp_state: qp.state() as u8,
        path_mtu: kept.path_mtu,
        max_rd_atomic: kept.max_rd_atomic,
        max_dest_rd_atomic: kept.max_dest_rd_atomic,
        min_rnr_timer: kept.min_rnr_timer,
        port_num: kept.port_num,
        timeout: kept.timeout,
        retry_cnt: kept.retry_cnt,
        rnr_retry: kept.rnr_retry,
        ..ModifyQp::default()
    }
}

/// XRC_EVENT: reports an event of a target to the target's other holders.
pub fn tell(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let XrcEvent { qp_handle, event } = call.body()?;
    let (owner, handle) = xrc::resolve(world, call.context, qp_handle);
    let qpn = find(&world.tables.qps, owner, handle, Kind::Qp)?.qpn;
    let known = [kind::QP_FATAL, kind::QP_REQ_ERR, kind::QP_ACCESS_ERR, kind::COMM_EST, kind::QP_LAST_WQE_REACHED];
    if owner != call.context || !known.contains(&event) {
        return refuse(Errno::EINVAL, format!("{event} is no event that this context can tell of the QP"));
    }
    for (holder, opened) in world.tables.domains.opened(qpn).filter(|(holder, _)| *holder != owner) {
        let element = world.tables.opened.find(holder, opened).map(|opened| opened.user_handle);
        let events = world.contexts.get_mut(&holder).and_then(|context| context.events.as_mut());
        if let (Some(element), Some(events)) = (element, events) {
            events.push(AsyncRecord { element, event_type: event, reserved: 0 });
        }
    }
    Ok(Answer::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::target::target_word;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn the_next_server_of_a_target_sees_the_numbers_of_the_last() {
        const ROUNDS: u32 = 300;
        let mut memory = QueueMemory::new(Arc::new(crate::host::System::default()), Closer::default());
        let mut block = || memory.allocate_apart(TARGET_LEN).expect("memory").block;
        let (old, copy) = (block(), block());
        // The owner of the number on the board, in rounds: even while the server owns it, odd when
        // another engine does.
        let owner = AtomicU32::new(0);
        let said = AtomicU32::new(0);
        let gone = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut written = 0;
                for round in 0..ROUNDS {
                    gone.wait();
                    loop {
                        written += 1;
                        old.word(target_word::EXPECTED).store(written, Ordering::Release);
                        fence(Ordering::SeqCst);
                        if owner.load(Ordering::Relaxed) != 2 * round {
                            break;
                        }
                        said.store(written, Ordering::Relaxed);
                    }
                    gone.wait();
                    gone.wait();
                }
            });
            for round in 0..ROUNDS {
                gone.wait();
                let before = said.load(Ordering::Relaxed);
                while said.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                take_words(|| owner.store(2 * round + 1, Ordering::Relaxed), &old, &copy);
                gone.wait();
                let (told, known) = (said.load(Ordering::Relaxed), copy.read(target_word::EXPECTED));
                assert!(told <= known, "round {round}: {told} was said, {known} is known");
                owner.store(2 * round + 2, Ordering::Relaxed);
                gone.wait();
            }
        });
    }
}
