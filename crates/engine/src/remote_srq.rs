//! Requests to an XRC target for an SRQ of another engine. They go to the engine that has the SRQ,
//! and its reply is passed to the target's responder.
//!
//! A target has one request at another engine at a time. Later requests wait here, up to a limit.
//! Data for READs is fetched packet by packet. Each engine accesses only its own program's memory
//! ([`crate::proxy`]), and no engine waits for a process: if a process dies, its lane ends. The
//! protocol is in `remote_srq/requests.rs`. Principal type: [`RemoteSrq`].

mod requests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use protocol::{Nak, Standing};
use wire::Headers;
use wire::Psn;

use crate::cell::Packet;
use crate::kept::KeptPacket;
use crate::lane::{LANE_MTU, Lane};
use crate::srq_request::{SrqReply, SrqRequest};

/// Bytes that wait at one target, at most.
const AT_ONE: usize = 1 << 20;

/// The engine that has an SRQ, by the domain's token and the SRQ's number.
pub(crate) type SrqOwners = HashMap<(u64, u32), u32>;

/// The progress of a request.
enum Stage<Q> {
    /// The engine of the SRQ, or a lane to it, is not known yet.
    New,
    /// The helper thread is asking for it.
    Asked,
    /// Sent over this lane.
    Sent(Arc<Lane<Q>>),
}

/// A request with its packet and payload.
struct RemoteRequest<Q> {
    request: SrqRequest,
    packet: Packet,
    payload: Box<[u8]>,
    stage: Stage<Q>,
}

/// A range to read for a peer: SRQ, key, address, length.
type FetchRange = (u32, u32, u64, u32);

/// The result of reading it.
type FetchResult = Result<Box<[u8]>, Nak>;

/// The last request that an engine has carried out for a target.
#[derive(Clone, Copy)]
pub(crate) struct LastRequest {
    /// The engine that asked.
    pub(crate) by: u32,
    /// The packet and the connection of the request.
    pub(crate) psn: Psn,
    pub(crate) connection: u32,
    pub(crate) reply: SrqReply,
}

/// Where the bytes of a READ response are.
pub(crate) enum Fetched<'a> {
    /// In this process, as usual.
    Here,
    /// They have been fetched, for an answer with these headers.
    Bytes(Headers, &'a [u8]),
    /// They cannot be read.
    Refused(Nak),
    /// They are being fetched.
    Waits,
}

/// A reply for which the lane had no room, with its payload.
type Reply<Q> = (Arc<Lane<Q>>, SrqReply, Box<[u8]>);

/// The state of a target that uses other engines' SRQs, or that other engines serve.
pub(crate) struct RemoteSrq<Q> {
    /// The request that is being carried out.
    current: Option<RemoteRequest<Q>>,
    /// The range that is being read.
    fetch: Option<(FetchRange, RemoteRequest<Q>)>,
    /// The range that was read, and its data.
    fetched: Option<(FetchRange, FetchResult)>,
    /// Requests that arrived meanwhile.
    queue: VecDeque<KeptPacket>,
    bytes: usize,
    last_id: u32,
    /// The SRQ, and the lane to its engine, that has part of a message.
    half: Option<(u32, Arc<Lane<Q>>)>,
    /// The last recorded state, and in which of the two places it is.
    pub(crate) written: Option<(Standing, u32)>,
    /// At an SRQ's engine: the last request that was carried out.
    pub(crate) done: Option<LastRequest>,
    /// Replies for which a lane had no room.
    pub(crate) replies: VecDeque<Reply<Q>>,
}

impl<Q> RemoteSrq<Q> {
    /// Whether requests have to wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.current.is_some() || !self.queue.is_empty()
    }

    fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }
}

/// The largest piece that is fetched at once.
pub(crate) const PIECE: u32 = LANE_MTU;

impl<Q> Default for RemoteSrq<Q> {
    fn default() -> Self {
        Self {
            current: None,
            fetch: None,
            fetched: None,
            queue: VecDeque::new(),
            bytes: 0,
            last_id: 0,
            half: None,
            written: None,
            done: None,
            replies: VecDeque::new(),
        }
    }
}
