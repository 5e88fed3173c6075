//! XRC: OPEN_XRCD, CLOSE_XRCD, CREATE_XSRQ, OPEN_QP.
//!
//! All processes that name the same file share a domain. The domain lives as long as it has a
//! handle. Target QPs are found in it by number. A process that opens a target holds it, and when
//! the last holder releases it, the target is destroyed. [`super::target`] moves a target from one
//! context to another. The principal types are [`Xrcd`], a handle, and
//! [`crate::objects::domains::Domains`], the domains themselves.

use abi::Errno;
use abi::qp::{CreateQpAnswer, kind};
use abi::queue::REV;
use abi::xrc::{CloseXrcd, CreateXsrq, OpenQp, OpenXrcd, OpenXrcdAnswer, XrcdOut};

use super::pd::no_handle;
use super::srq;
use super::{Answer, Call, find, find_mut, qp, target, unused};
use crate::ids::ContextId;
use crate::objects::domains::XrcdFile;
use crate::objects::{OpenedQp, Xrc, Xrcd};
use crate::refusal::{Outcome, refuse};
use crate::shares;
use crate::table::Kind;
use crate::world::World;

/// Releasing a target may pass it on, which costs as much as this many other releases.
const LET_GO_COST: usize = 16;

/// `O_CREAT` and `O_EXCL`, with their values on every supported architecture.
const CREATE: u32 = 0o100;
const EXCLUSIVE: u32 = 0o200;

/// OPEN_XRCD: creates a private domain, or opens the domain of a file.
pub fn open(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    let mut fds = std::mem::take(&mut call.fds);
    let body: OpenXrcd = call.body()?;
    let (owner, device) = (call.context, world.device_of(call.context).index);
    let file = match (body.fd, fds.pop()) {
        (-1, _) => None,
        (_, None) => return refuse(Errno::EBADF, "the file that names the XRC domain did not come along"),
        // As in the kernel, the file may be open in any mode except O_PATH, which needs no right to
        // the file.
        (_, Some(fd)) => Some(XrcdFile { inode: fd.inode()?, _fd: fd.into_foreign() }),
    };
    let found = file.as_ref().and_then(|file| world.tables.domains.of_file(device, file.inode));
    match found {
        Some(number) if body.oflags & EXCLUSIVE != 0 => {
            return refuse(Errno::EINVAL, format!("the file names XRC domain {number} already, and O_EXCL is given"));
        }
        None if file.is_some() && body.oflags & CREATE == 0 => {
            return refuse(Errno::EAGAIN, "the file names no XRC domain yet, and O_CREAT is not given");
        }
        _ => {}
    }
    shares::room_for(world, owner, Kind::Xrcd)?;
    if file.is_some() {
        shares::room_for_descriptor(world, owner)?;
    }
    let number = found.unwrap_or_else(|| world.tables.domains.add(device, file, || world.system.secret()));
    let Some(handle) = world.tables.xrcds.insert(owner, Xrcd { domain: number, users: 0 }) else {
        return Err(no_handle(Kind::Xrcd));
    };
    world.tables.domains.hold(number);
    world.device_of_mut(owner).count_up(Kind::Xrcd);
    let token = world.tables.domains.token(number);
    Ok(call.answer_with(&OpenXrcdAnswer { xrcd_handle: handle }, &XrcdOut { rev: REV, number, token }, None))
}

/// CLOSE_XRCD.
pub fn close(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let CloseXrcd { xrcd_handle } = call.body()?;
    let xrcd = find(&world.tables.xrcds, call.context, xrcd_handle, Kind::Xrcd)?;
    unused(xrcd.users, &format!("XRC domain {}", xrcd.domain), "SRQs or QPs")?;
    remove(world, call.context, xrcd_handle);
    Ok(Answer::default())
}

/// CREATE_XSRQ: an SRQ of an XRC domain, or an ordinary one.
pub fn create_srq(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    /// `IBV_SRQT_BASIC`, `_XRC`, `_TM`.
    const BASIC: u32 = 0;
    const XRC: u32 = 1;
    const TAG_MATCHING: u32 = 2;
    let body: CreateXsrq = call.body()?;
    let owner = call.context;
    let xrc = match body.srq_type {
        BASIC => None,
        XRC => {
            let domain = find(&world.tables.xrcds, owner, body.xrcd_handle, Kind::Xrcd)?.domain;
            find(&world.tables.cqs, owner, body.cq_handle, Kind::Cq)?;
            Some(Xrc { domain, xrcd: body.xrcd_handle, cq: body.cq_handle })
        }
        TAG_MATCHING => return refuse(Errno::EOPNOTSUPP, "the device does not match tags"),
        other => return refuse(Errno::EINVAL, format!("SRQ type {other} does not exist")),
    };
    let wanted = srq::SrqInitAttr {
        user_handle: body.user_handle,
        pd: body.pd_handle,
        max_wr: body.max_wr,
        max_sge: body.max_sge,
        limit: body.srq_limit,
        xrc,
    };
    let (answer, out, fd) = srq::make(world, owner, wanted)?;
    Ok(call.answer_with(&answer, &out, fd))
}

/// OPEN_QP: creates a further handle of a target QP.
pub fn open_qp(world: &mut World, call: &Call<'_>) -> Outcome<Answer> {
    let body: OpenQp = call.body()?;
    let owner = call.context;
    let number = find(&world.tables.xrcds, owner, body.pd_handle, Kind::Xrcd)?.domain;
    let target = world.tables.domains.target(number, body.qpn);
    let Some((holder, qp)) = target.filter(|_| body.qp_type == kind::XRC_TGT) else {
        return refuse(Errno::EINVAL, format!("XRC domain {number} has no target QP {:#x}", body.qpn));
    };
    shares::room_for(world, owner, Kind::Opened)?;
    let Some(handle) = world
        .tables
        .opened
        .insert(owner, OpenedQp { qp: (holder, qp), xrcd: body.pd_handle, user_handle: body.user_handle })
    else {
        return Err(no_handle(Kind::Opened));
    };
    find_mut(&mut world.tables.qps, holder, qp, Kind::Qp)?.holders += 1;
    world.tables.domains.open(body.qpn, (owner, handle));
    hold(world, owner, body.pd_handle, 1);
    world.device_of_mut(owner).count_up(Kind::Opened);
    Ok(call.answer(&CreateQpAnswer { qp_handle: handle, qpn: body.qpn, ..CreateQpAnswer::default() }))
}

/// The context that serves the QP of a handle, and the QP's handle there. Any other handle is
/// returned unchanged.
pub fn resolve(world: &World, owner: ContextId, handle: u32) -> (ContextId, u32) {
    match world.tables.opened.find(owner, handle) {
        Some(opened) => opened.qp,
        // Its creator has released it, and only its other handles are valid.
        None if world.tables.qps.find(owner, handle).is_some_and(|qp| qp.is_left) => (owner, 0),
        None => (owner, handle),
    }
}

/// Releases one handle of a target QP. Returns true if others hold the target; then one of them
/// continues to serve it.
pub fn let_go_of(world: &mut World, holder: ContextId, handle: u32, (owner, qp): (ContextId, u32)) -> bool {
    if let Some(opened) = world.tables.opened.remove(holder, handle) {
        hold(world, holder, opened.xrcd, -1);
        world.device_of_mut(holder).count_down(Kind::Opened);
    }
    let Some(kept) = world.tables.qps.find_mut(owner, qp) else { return false };
    let qpn = kept.qpn;
    world.tables.domains.close(qpn, (holder, handle));
    kept.holders = kept.holders.saturating_sub(1);
    if kept.holders == 0 {
        return false;
    }
    let mut made_by = None;
    if (holder, handle) == (owner, qp) {
        kept.is_left = true;
        // Now the handle of the domain with which it was created may be closed.
        made_by = kept.domain.as_mut().map(|(_, xrcd)| std::mem::take(xrcd));
    }
    let is_left = kept.is_left;
    if let Some(xrcd) = made_by {
        hold(world, owner, xrcd, -1);
    }
    !is_left || world.tables.domains.opened_by(qpn, owner).next().is_some() || target::pass_on(world, owner, qp)
}

/// Releases some targets that a context holds which ends.
pub fn let_go_of_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let opened = world.tables.opened.of(owner).map(|(handle, opened)| (handle, opened.qp));
    let own = world.tables.qps.of(owner).filter(|(_, qp)| qp.domain.is_some() && !qp.is_left);
    let own = own.map(|(handle, _)| (handle, (owner, handle)));
    let held: Vec<_> = opened.chain(own).take(most.div_ceil(LET_GO_COST)).collect();
    for (handle, qp) in &held {
        if !let_go_of(world, owner, *handle, *qp) {
            qp::remove(world, qp.0, qp.1);
        }
    }
    held.len() * LET_GO_COST
}

/// Counts one object more or less that was created or opened with a handle.
pub fn hold(world: &mut World, owner: ContextId, handle: u32, by: i32) {
    if let Some(xrcd) = world.tables.xrcds.find_mut(owner, handle) {
        xrcd.users = xrcd.users.saturating_add_signed(by);
    }
}

/// Closes some handles of a context that ends, after its SRQs and QPs.
pub fn close_some(world: &mut World, owner: ContextId, most: usize) -> usize {
    let opened = world.tables.opened.first_of(owner, most);
    for handle in &opened {
        if world.tables.opened.remove(owner, *handle).is_some() {
            world.device_of_mut(owner).count_down(Kind::Opened);
        }
    }
    let handles = world.tables.xrcds.first_of(owner, most - opened.len());
    handles.iter().for_each(|handle| remove(world, owner, *handle));
    opened.len() + handles.len()
}

fn remove(world: &mut World, owner: ContextId, handle: u32) {
    if let Some(xrcd) = world.tables.xrcds.remove(owner, handle) {
        world.tables.domains.let_go(xrcd.domain);
        world.device_of_mut(owner).count_down(Kind::Xrcd);
    }
}
