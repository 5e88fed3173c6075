//! The thread of one client with a proxy engine: the engine, and the client's objects in it.
//!
//! It carries out in order what [`super::Proxies`] hands over. It follows the agent's changes and
//! carries out the commands that need an engine. All data of the client is checked as in the
//! client's own process: the engine checks keys, ranges and queue sizes; this file checks the
//! lengths of lists. The principal type is [`Worker`].

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use abi::command::{self, Command, number};
use abi::cq::{ExModifyCq, PollCq, PollCqAnswer, ReqNotifyCq, ResizeCq, ResizeCqAnswer, Wc};
use abi::layout::Record;
use abi::post::{self, Post, PostAnswer, RecvWr, SendWr, Sge, XrcSend, opcode, send_flags};
use abi::srq::ModifySrq;
use abi::{Errno, Refusal};
use engine::{
    Ah, Caps, Channel, Cq, CqSpec, Engine, Error, InitiatorSpec, Mr, Pd, PostError, Qp, QpSpec, Service, Srq,
};
use shm::region::Region;

use super::WorkerJob;
use super::inventory::{Change, Made, PairSpec};
use crate::commands::extended::MODERATION;
use crate::dispatch::Reply;
use crate::inbox::{Inbox, Message};
use crate::local::LocalControl;
use crate::refusal::{Outcome, refuse};
use crate::table::Kind;

/// The client's objects, by handle.
struct Worker {
    engine: Arc<Engine>,
    profile: u16,
    pds: BTreeMap<u32, Arc<Pd>>,
    mrs: BTreeMap<u32, Arc<Mr>>,
    channels: BTreeMap<u32, Arc<Channel>>,
    cqs: BTreeMap<u32, Arc<Cq>>,
    srqs: BTreeMap<u32, Arc<Srq>>,
    qps: BTreeMap<u32, (Arc<Qp>, Service)>,
    ahs: BTreeMap<u32, Arc<Ah>>,
}

/// Runs until the client is gone.
pub(super) fn run(control: LocalControl, context: Made, profile: u16, jobs: &Receiver<WorkerJob>, inbox: &Inbox) {
    let answer = engine::Answer { bytes: context.bytes, fds: context.fds };
    let mut worker = Engine::attach(Box::new(control), answer).map(|engine| Worker::new(engine, profile));
    for job in jobs {
        let (reply, to) = match (job, &mut worker) {
            (WorkerJob::Know(changes), worker) => {
                if let Ok(worker) = worker {
                    changes.into_iter().for_each(|change| worker.follow(change));
                }
                continue;
            }
            (WorkerJob::Follow { change, reply, to }, Ok(worker)) => {
                worker.follow(change);
                (reply, to)
            }
            (WorkerJob::Follow { reply, to, .. }, Err(_)) => (reply, to),
            (WorkerJob::Execute { request, to }, Ok(worker)) => {
                (worker.execute(&request).unwrap_or_else(|refused| refused), to)
            }
            (WorkerJob::Execute { to, .. }, Err(error)) => {
                (Refusal::new(error.errno, format!("the agent cannot run an engine: {}", error.reason)).into(), to)
            }
        };
        if !inbox.send(Message::Reply { to, reply }) {
            break;
        }
    }
    if let Ok(worker) = worker {
        worker.engine.close();
    }
}

impl Worker {
    fn new(engine: Arc<Engine>, profile: u16) -> Self {
        Self {
            engine,
            profile,
            pds: BTreeMap::new(),
            mrs: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            ahs: BTreeMap::new(),
        }
    }

    /// Follows one change. If an object cannot be taken over (its memory cannot be mapped), it is
    /// missing later. Work requests that use it then complete in error, as after its destruction.
    fn follow(&mut self, change: Change) {
        if let Err(error) = self.take_over(change) {
            tracing::warn!(%error, "the proxy engine could not take an object over");
        }
    }

    /// Takes over a QP that is no XRC target.
    fn take_over_pair(&mut self, handle: u32, spec: &PairSpec, made: Made) -> engine::Result<()> {
        let pd = known(&self.pds, spec.pd)?;
        let send_cq = known(&self.cqs, spec.send_cq)?;
        let (sq_sig_all, cookie, caps) = (spec.sq_sig_all, spec.cookie, Caps::default());
        let qp = if spec.service == Service::XrcIni {
            let initiator = InitiatorSpec { send_cq, caps, sq_sig_all, cookie };
            self.engine.adopt_initiator(pd, &initiator, &made.bytes, made.fds)?
        } else {
            let recv_cq = known(&self.cqs, spec.recv_cq)?;
            let srq = spec.srq.map(|srq| known(&self.srqs, srq)).transpose()?;
            let pair = QpSpec { service: spec.service, send_cq, recv_cq, srq, caps, sq_sig_all, cookie };
            self.engine.adopt_pair(pd, &pair, &made.bytes, made.fds)?
        };
        self.qps.insert(handle, (qp, spec.service));
        Ok(())
    }

    fn take_over(&mut self, change: Change) -> engine::Result<()> {
        match change {
            Change::Pd(handle) => drop(self.pds.insert(handle, Pd::adopt(&self.engine, handle))),
            Change::Mr { answer, memory: None, .. } => self.forget(Kind::Mr, answer.mr_handle),
            Change::Mr { body, answer, memory: Some((memfd, offset)) } => {
                self.forget(Kind::Mr, answer.mr_handle);
                // Maps only the registered part: the file may be far longer, and the agent's
                // address space is shared by all.
                let len = usize::try_from(body.length).unwrap_or(usize::MAX);
                let region = Arc::new(Region::map_part(memfd.as_fd(), offset, len).map_err(engine::by_system)?);
                let pd = known(&self.pds, body.pd_handle)?;
                let mr = self.engine.adopt_mr(pd, &body, &answer, region)?;
                self.mrs.insert(answer.mr_handle, mr);
            }
            Change::Channel { handle, eventfd } => {
                self.channels.insert(handle, self.engine.adopt_channel(handle, eventfd));
            }
            Change::Cq { handle, cookie, channel, made } => {
                let channel = channel.map(|channel| known(&self.channels, channel)).transpose()?;
                let spec = CqSpec { cqe: 0, channel, comp_vector: 0, cookie };
                let cq = self.engine.adopt_cq(&spec, &made.bytes, made.fds)?;
                self.cqs.insert(handle, cq);
            }
            Change::Srq { handle, pd, cookie, made, member } => {
                let pd = known(&self.pds, pd)?;
                let member = member.map(|member| Ok::<_, Error>((member.domain, known(&self.cqs, member.cq)?)));
                let srq = self.engine.adopt_shared(pd, member.transpose()?, cookie, &made.bytes, made.fds)?;
                self.srqs.insert(handle, srq);
            }
            Change::Target { cookie, made, domain } => {
                self.engine.adopt_made_target(domain, cookie, &made.bytes, made.fds)?;
            }
            Change::Opened { qpn, domain } => self.engine.adopt_opened(qpn, domain),
            Change::ModifyTarget { qpn, body } => self.engine.adopt_modified(qpn, &body),
            Change::Left { handle, targets } => {
                self.forget(Kind::Qp, handle);
                self.engine.adopt_left(&targets);
            }
            Change::Qp { handle, spec, made } => self.take_over_pair(handle, &spec, made)?,
            Change::Ah { handle, pd, attr } => {
                self.ahs.insert(handle, Ah::adopt(known(&self.pds, pd)?, handle, &attr));
            }
            Change::Modify(body) => {
                known(&self.qps, body.base.qp_handle)?.0.adopt_modify(&body.base, body.rate_limit);
            }
            Change::Gone(kind, handle) => self.forget(kind, handle),
        }
        Ok(())
    }

    fn forget(&mut self, kind: Kind, handle: u32) {
        match kind {
            Kind::Pd => drop(self.pds.remove(&handle)),
            Kind::Mw | Kind::Dm => {}
            Kind::Mr => {
                if let Some(mr) = self.mrs.remove(&handle) {
                    mr.forget();
                }
            }
            Kind::Channel => drop(self.channels.remove(&handle)),
            Kind::Cq => {
                if let Some(cq) = self.cqs.remove(&handle) {
                    cq.forget();
                }
            }
            Kind::Srq => {
                if let Some(srq) = self.srqs.remove(&handle) {
                    srq.forget();
                }
            }
            Kind::Qp => {
                if let Some((qp, _)) = self.qps.remove(&handle) {
                    qp.forget();
                }
            }
            Kind::Ah => drop(self.ahs.remove(&handle)),
            Kind::Xrcd | Kind::Opened => {}
        }
    }

    /// Carries out a command that needs an engine: posting, polling, arming, and the engine's part
    /// of other commands.
    fn execute(&mut self, request: &[u8]) -> Result<Reply, Reply> {
        let command = command::admit(request, self.profile, true)
            .map_err(|errno| Refusal::new(errno, "the lengths of the command are wrong"))?;
        let bytes = match command.row.number {
            number::POLL_CQ => self.poll(&command)?,
            number::REQ_NOTIFY_CQ => self.arm(&command)?,
            number::RESIZE_CQ => self.resize(&command)?,
            number::MODIFY_SRQ => self.modify_srq(&command)?,
            number::EX_MODIFY_CQ => self.moderate(&command)?,
            number::POST_SEND => self.post_send(&command)?,
            number::POST_RECV => {
                let (body, list) = lists(&command)?;
                let (qp, _) = object(&self.qps, Kind::Qp, body.handle).map_err(|refusal| Reply::bad_wr(0, refusal))?;
                receives(&command, &body, list, |wr| qp.post_recv(wr))?
            }
            _ => {
                let (body, list) = lists(&command)?;
                let srq = object(&self.srqs, Kind::Srq, body.handle).map_err(|refusal| Reply::bad_wr(0, refusal))?;
                receives(&command, &body, list, |wr| srq.post(wr))?
            }
        };
        Ok(Reply { status: 0, bytes, fds: Vec::new() })
    }

    fn poll(&self, command: &Command<'_>) -> Outcome<Vec<u8>> {
        let PollCq { cq_handle, ne, .. } = body(command)?;
        let cq = object(&self.cqs, Kind::Cq, cq_handle)?;
        let room = (command.room() - size_of::<PollCqAnswer>()) / size_of::<Wc>();
        let wanted = ne as usize;
        if wanted > room {
            return refuse(Errno::ENOSPC, format!("POLL_CQ: there is room for {room} completions, not for {ne}"));
        }
        let mut found = vec![Wc::default(); wanted];
        let count = cq.poll(&mut found).map_err(Refusal::from)?;
        let wcs: Vec<u8> = found[..count].iter().flat_map(|wc| wc.bytes().to_vec()).collect();
        Ok(command.reply(PollCqAnswer { count: count as u32, reserved: 0 }.bytes(), &wcs))
    }

    fn arm(&self, command: &Command<'_>) -> Outcome<Vec<u8>> {
        let ReqNotifyCq { cq_handle, solicited_only } = body(command)?;
        object(&self.cqs, Kind::Cq, cq_handle)?.req_notify(solicited_only != 0).map_err(Refusal::from)?;
        Ok(Vec::new())
    }

    /// The client maps no queue memory, so the answer does not say where the queue is now.
    fn resize(&self, command: &Command<'_>) -> Outcome<Vec<u8>> {
        let ResizeCq { cq_handle, cqe, .. } = body(command)?;
        let cqe = object(&self.cqs, Kind::Cq, cq_handle)?.resize(cqe)?;
        Ok(command.reply(ResizeCqAnswer { cqe, reserved: 0 }.bytes(), &[]))
    }

    fn moderate(&self, command: &Command<'_>) -> Outcome<Vec<u8>> {
        let ExModifyCq { cq_handle, attr_mask, cq_count, cq_period, .. } = command.body().map_err(Refusal::from)?;
        if attr_mask != MODERATION {
            return refuse(Errno::EOPNOTSUPP, format!("EX_MODIFY_CQ: attributes {attr_mask:#x} do not change"));
        }
        object(&self.cqs, Kind::Cq, cq_handle)?.moderate(cq_count, cq_period)?;
        Ok(Vec::new())
    }

    fn modify_srq(&self, command: &Command<'_>) -> Outcome<Vec<u8>> {
        let ModifySrq { srq_handle, attr_mask, max_wr, srq_limit } = body(command)?;
        object(&self.srqs, Kind::Srq, srq_handle)?.modify(attr_mask, max_wr, srq_limit)?;
        Ok(Vec::new())
    }

    fn post_send(&self, command: &Command<'_>) -> Result<Vec<u8>, Reply> {
        let (body, list) = lists(command)?;
        let (qp, service) = object(&self.qps, Kind::Qp, body.handle).map_err(|refusal| Reply::bad_wr(0, refusal))?;
        let mut batch = qp.send_batch().map_err(|error| Reply::bad_wr(0, not_posted(error)))?;
        let mut outcome = Ok(());
        let mut sges = list.sges.as_slice();
        for index in 0..body.wr_count as usize {
            let pushed = list.work_request::<SendWr>(&body, index).and_then(|wr| {
                let taken = split(&mut sges, wr.num_sge)?;
                let xrc_srq = if *service == Service::XrcIni { list.named_queue(&body, index)? } else { 0 };
                self.push(&mut batch, (*service, xrc_srq), &wr, taken)
            });
            if let Err(refusal) = pushed {
                outcome = Err(Reply::bad_wr(index, refusal));
                break;
            }
        }
        // Even after a refusal, the work requests before it are posted.
        batch.finish();
        outcome.map(|()| command.reply(PostAnswer { bad_wr: 0 }.bytes(), &[]))
    }

    fn push(
        &self,
        batch: &mut engine::SendBatch<'_>,
        (service, xrc_srq): (Service, u32),
        wr: &SendWr,
        sges: &[Sge],
    ) -> Outcome<()> {
        if wr.send_flags & send_flags::INLINE != 0 {
            return refuse(
                Errno::EINVAL,
                "inline data lies in the client's memory, where the proxy engine cannot read it",
            );
        }
        let mut request = engine::SendWr {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            send_flags: wr.send_flags,
            imm: wr.imm_data,
            xrc_srq,
            sges,
            ..engine::SendWr::default()
        };
        match wr.opcode {
            opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD => {
                let post::Atomic { remote_addr, compare_add, swap, rkey, .. } = wr.atomic();
                (request.remote_addr, request.compare_add, request.swap, request.rkey) =
                    (remote_addr, compare_add, swap, rkey);
            }
            opcode::SEND | opcode::SEND_WITH_IMM if service == Service::Ud => {
                let ud = wr.ud();
                request.ud = Some((object(&self.ahs, Kind::Ah, ud.ah_handle)?, ud.remote_qpn, ud.remote_qkey));
            }
            _ => (request.remote_addr, request.rkey) = (wr.rdma().remote_addr, wr.rdma().rkey),
        }
        batch.push(&request).map_err(not_posted)
    }
}

/// The arrays after the header of POST_*.
struct Lists<'a> {
    requests: &'a [u8],
    sges: Vec<Sge>,
}

impl Lists<'_> {
    fn work_request<T: Record>(&self, body: &Post, index: usize) -> Outcome<T> {
        let at = index * body.wqe_size as usize;
        self.requests.get(at..).and_then(T::read).map_or_else(|| refuse(Errno::EINVAL, LISTS), Ok)
    }

    /// The peer's SRQ in a work request of an XRC initiator.
    fn named_queue(&self, body: &Post, index: usize) -> Outcome<u32> {
        let at = index * body.wqe_size as usize + size_of::<SendWr>();
        let named = self.requests.get(at..).and_then(XrcSend::read);
        match named.filter(|_| body.wqe_size as usize >= size_of::<SendWr>() + size_of::<XrcSend>()) {
            Some(XrcSend { remote_srqn, .. }) => Ok(remote_srqn),
            None => {
                refuse(Errno::EINVAL, "work requests of 56 bytes do not name the SRQ that an XRC initiator sends to")
            }
        }
    }
}

const LISTS: &str = "the lists of work requests and scatter/gather entries are shorter than their counts say";

/// Splits the arrays, if they are as long as the header says. Otherwise the refusal names the first
/// work request.
fn lists<'a>(command: &Command<'a>) -> Result<(Post, Lists<'a>), Reply> {
    let (body, tail) = command.body_and_tail::<Post>().map_err(|errno| Reply::bad_wr(0, errno.into()))?;
    let least = if command.row.number == number::POST_SEND { size_of::<SendWr>() } else { size_of::<RecvWr>() };
    let requests = u64::from(body.wqe_size) * u64::from(body.wr_count);
    let sges = size_of::<Sge>() as u64 * u64::from(body.sge_count);
    if (body.wqe_size as usize) < least || requests.saturating_add(sges) > tail.len() as u64 {
        return Err(Reply::bad_wr(0, Refusal::new(Errno::EINVAL, LISTS)));
    }
    let (requests, rest) = tail.split_at(requests as usize);
    let sges = rest.chunks_exact(size_of::<Sge>()).take(body.sge_count as usize).filter_map(Sge::read).collect();
    Ok((body, Lists { requests, sges }))
}

/// Posts receive requests one by one.
fn receives(
    command: &Command<'_>,
    body: &Post,
    list: Lists<'_>,
    post: impl Fn(&engine::RecvWr<'_>) -> Result<(), PostError>,
) -> Result<Vec<u8>, Reply> {
    let mut sges = list.sges.as_slice();
    for index in 0..body.wr_count as usize {
        list.work_request::<RecvWr>(body, index)
            .and_then(|wr| {
                let sges = split(&mut sges, wr.num_sge)?;
                post(&engine::RecvWr { wr_id: wr.wr_id, sges }).map_err(not_posted)
            })
            .map_err(|refusal| Reply::bad_wr(index, refusal))?;
    }
    Ok(command.reply(PostAnswer { bad_wr: 0 }.bytes(), &[]))
}

/// Takes the next entries from the list.
fn split<'s>(sges: &mut &'s [Sge], count: u32) -> Outcome<&'s [Sge]> {
    let Some((taken, rest)) = sges.split_at_checked(count as usize) else {
        return refuse(Errno::EINVAL, LISTS);
    };
    *sges = rest;
    Ok(taken)
}

fn body<T: Record>(command: &Command<'_>) -> Outcome<T> {
    command.body_and_tail().map(|(body, _)| body).map_err(Refusal::from)
}

fn known<T>(table: &BTreeMap<u32, T>, handle: u32) -> engine::Result<&T> {
    table.get(&handle).ok_or_else(|| Error::from(Errno::ENOENT))
}

fn object<T>(table: &BTreeMap<u32, T>, kind: Kind, handle: u32) -> Outcome<&T> {
    match table.get(&handle) {
        Some(object) => Ok(object),
        None => refuse(Errno::ENOENT, format!("handle {handle:#x} is not a valid {kind} of this context")),
    }
}

fn not_posted(error: PostError) -> Refusal {
    Refusal::new(error.errno(), error.to_string())
}
