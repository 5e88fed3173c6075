//! Carries out a command: a function from the world and a request to a reply.
//!
//! [`dispatch`] reads from the top down. It first checks the header, by rules that are the same for
//! all commands (docs/abi.md, "Command headers"). Then the file of the command's object, in
//! [`crate::commands`], carries the command out. Then the outcome becomes a reply. A request may
//! contain any bytes; the worst result is a refusal. POST_*, POLL_CQ and REQ_NOTIFY_CQ need an
//! engine, so the proxy engine serves them elsewhere (`proxy.rs`).
//!
//! A command takes random numbers, memory and descriptors from the world's
//! [`Host`](crate::host::Host). It wakes nobody: what it has for other clients waits in the world
//! until [`World::flush`].

use std::os::fd::OwnedFd;

use abi::command;
use abi::command::number;
use abi::layout::Record;
use abi::post::PostAnswer;
use abi::{Errno, Refusal};

use crate::commands::{
    Answer, Call, ah, cq, device, direct, dm, engine, extended as ex, import, mcast, mr, mw, path, pd, qp, qp_modify,
    resize, srq, stream, target, violation, wire, xrc,
};
use crate::foreign::PassedFd;
use crate::headroom;
use crate::ids::ContextId;
use crate::inadmissible;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// The reply to a client, without its envelope.
#[derive(Debug)]
pub struct Reply {
    /// 0 or a negative error number.
    pub status: i32,
    /// The answer. For a refused command, the sentence that says why; POST_* answers its `bad_wr`
    /// before that sentence.
    pub bytes: Vec<u8>,
    /// Descriptors for the client.
    pub fds: Vec<OwnedFd>,
}

/// Carries out one command of a client.
pub fn dispatch(world: &mut World, client: ContextId, request: &[u8], fds: Vec<PassedFd>) -> Reply {
    let told = |refusal: &Refusal| tracing::debug!(context = client.0, %refusal, "refused");
    let admitted = admit(world, client, request, fds).and_then(|call| fail_on_demand(world, call)).inspect_err(told);
    let mut call = match admitted {
        Ok(call) => call,
        Err(refusal) => return refusal.into(),
    };
    match carry_out(world, &mut call).inspect_err(told) {
        Ok(answer) => Reply { status: 0, bytes: answer.bytes, fds: answer.fds },
        Err(refusal) => Reply::refused(call.command.row.number, refusal),
    }
}

/// Checks the header by the rules of all commands, in the kernel's order.
fn admit<'a>(world: &mut World, client: ContextId, request: &'a [u8], fds: Vec<PassedFd>) -> Outcome<Call<'a>> {
    let context = world.context(client)?;
    let (profile, has_context) = (context.profile, context.is_open());
    match command::admit(request, profile, has_context) {
        Ok(command) => Ok(Call { context: client, command, fds }),
        Err(errno) => refuse(errno, inadmissible::why(request, errno, profile, has_context)),
    }
}

/// Whether a command only frees objects, so that it is carried out even without memory.
fn gives_back(call: &Call<'_>) -> bool {
    let number = call.command.row.number;
    match call.command.is_extended() {
        true => matches!(number, number::CHANNEL_DESTROY | number::FREE_DM | number::RESIZE_UNDO),
        false => matches!(
            number,
            number::DEALLOC_PD
                | number::DESTROY_AH
                | number::DEREG_MR
                | number::DEALLOC_MW
                | number::DESTROY_CQ
                | number::DESTROY_SRQ
                | number::CLOSE_XRCD
                | number::DESTROY_QP
                | number::DETACH_MCAST
        ),
    }
}

/// Refuses the command if a fault rule says so.
fn fail_on_demand<'a>(world: &World, call: Call<'a>) -> Outcome<Call<'a>> {
    if world.faults.is_on()
        && let Some(context) = world.contexts.get(&call.context)
    {
        world.faults.check_command(context, call.command.row)?;
    }
    Ok(call)
}

/// [`carry_out`] for extended commands.
fn carry_out_extended(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    match call.command.row.number {
        number::EX_QUERY_DEVICE => ex::query_device(world, call),
        number::EX_CREATE_CQ => ex::create_cq(world, call),
        number::EX_MODIFY_CQ => ex::modify_cq(world, call),
        number::EX_CREATE_QP => ex::create_qp(world, call),
        number::EX_MODIFY_QP => ex::modify_qp(world, call),

        number::ENGINE_HELLO => engine::hello(world, call),
        number::LANE_OPEN => engine::open_lane(world, call),
        number::MCAST_RESOLVE => mcast::resolve(world, call),
        number::PATH_RESOLVE => path::resolve(world, call),
        number::CHANNEL_DESTROY => cq::destroy_channel(world, call),
        number::RESIZE_UNDO => resize::undo(world, call),
        number::GID_ENTRY => device::gid_entry(world, call),
        number::VIOLATION => violation::tell(world, call),
        number::WIRE_OPEN => wire::open(world, call),
        number::WIRE_SOCKETS => wire::sockets(world, call),
        number::DIRECT_ASK => direct::ask(world, call),
        number::DIRECT_GRANT => direct::grant(world, call),
        number::ALLOC_DM => dm::alloc(world, call),
        number::FREE_DM => dm::free(world, call),
        number::IMPORT_CONTEXT => import::context(world, call),
        number::IMPORT_PD => import::domain(world, call),
        number::IMPORT_MR => import::region(world, call),
        number::IMPORT_DM => import::memory(world, call),
        number::XRC_FIND => target::locate(world, call),
        number::XRC_ADOPT => target::adopt(world, call),
        number::XRC_EVENT => target::tell(world, call),
        number::STREAM_TAKE => stream::take(world, call),
        number::STREAM_END => stream::end(world, call),
        _ => unserved(call),
    }
}

/// Calls the function that carries out an admitted command.
fn carry_out(world: &mut World, call: &mut Call<'_>) -> Outcome<Answer> {
    if !gives_back(call) {
        if world.device_of(call.context).is_removed {
            return refuse(Errno::EIO, "the device was removed; its objects can only be destroyed");
        }
        headroom::check()?;
    }
    if call.command.is_extended() {
        return carry_out_extended(world, call);
    }
    match call.command.row.number {
        number::GET_CONTEXT => device::get_context(world, call),
        number::QUERY_DEVICE => device::query_device(world, call),
        number::QUERY_PORT => device::query_port(world, call),
        number::QUERY_GID => device::query_gid(world, call),
        number::QUERY_PKEY => device::query_pkey(world, call),

        number::ALLOC_PD => pd::alloc(world, call),
        number::DEALLOC_PD => pd::dealloc(world, call),

        number::CREATE_AH => ah::create(world, call),
        number::DESTROY_AH => ah::destroy(world, call),

        number::REG_MR => mr::register(world, call),
        number::REREG_MR => mr::reregister(world, call),
        number::DEREG_MR => mr::deregister(world, call),
        number::ALLOC_MW => mw::alloc(world, call),
        number::DEALLOC_MW => mw::dealloc(world, call),

        number::CREATE_COMP_CHANNEL => cq::create_channel(world, call),
        number::CREATE_CQ => cq::create(world, call),
        number::RESIZE_CQ => cq::resize(world, call),
        number::DESTROY_CQ => cq::destroy(world, call),

        number::CREATE_SRQ => srq::create(world, call),
        number::MODIFY_SRQ => srq::modify(world, call),
        number::QUERY_SRQ => srq::query(world, call),
        number::DESTROY_SRQ => srq::destroy(world, call),

        number::OPEN_XRCD => xrc::open(world, call),
        number::CLOSE_XRCD => xrc::close(world, call),
        number::CREATE_XSRQ => xrc::create_srq(world, call),
        number::OPEN_QP => xrc::open_qp(world, call),

        number::CREATE_QP => qp::create(world, call),
        number::QUERY_QP => qp::query(world, call),
        number::MODIFY_QP => qp_modify::modify(world, call),
        number::DESTROY_QP => qp::destroy(world, call),

        number::ATTACH_MCAST => mcast::attach(world, call),
        number::DETACH_MCAST => mcast::detach(world, call),
        _ => unserved(call),
    }
}

/// Refuses a command that needs an engine.
fn unserved(call: &Call<'_>) -> Outcome<Answer> {
    let name = call.command.row.name;
    refuse(Errno::EOPNOTSUPP, format!("{name} needs an engine, and the agent runs none for this client"))
}

impl Reply {
    /// The reply as its client takes it: a refused command is an error.
    pub(crate) fn granted(self) -> Outcome<Self> {
        match Errno::from_status(self.status) {
            Ok(()) => Ok(self),
            Err(errno) => refuse(errno, String::from_utf8_lossy(&self.bytes).into_owned()),
        }
    }

    /// The reply to POST_* if the work request at `index` was refused.
    pub(crate) fn bad_wr(index: usize, refusal: Refusal) -> Self {
        let mut reply = Self::from(refusal);
        reply.bytes.splice(0..0, PostAnswer { bad_wr: index as u32 + 1 }.bytes().iter().copied());
        reply
    }

    /// The reply to a refused command. POST_* has only a legacy form, so the number is enough.
    pub(crate) fn refused(number: u8, refusal: Refusal) -> Self {
        match number {
            number::POST_SEND | number::POST_RECV | number::POST_SRQ_RECV => Self::bad_wr(0, refusal),
            _ => refusal.into(),
        }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self { status: refusal.errno.to_status(), bytes: refusal.reason.into_owned().into_bytes(), fds: Vec::new() }
    }
}
