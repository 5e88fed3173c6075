//! An engine as far as the wire is concerned: it has QPs, and reads its wire lane.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::board::BOARD_LEN;
use abi::command::{extended, legacy, number};
use abi::layout::Record;
use abi::mcast::AttachMcast;
use abi::private::{EngineHello, EngineHelloAnswer};
use abi::qp::kind;
use abi::wire::{Arrival, WireOpen, WireOut, WireSockets, WireSocketsAnswer, arrival_flags, arrival_kind};
use shm::region::Region;
use shm::wake_word::WakeWord;
use shm::{LANE_LEN, LaneRx, LaneTx, Notifier, RECORD_MAX, Side, Socket};

use crate::common::{Client, TestAgent};

/// Longer than any operation here takes, on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A client that listens to the wire.
pub(crate) struct Ear {
    pub(crate) client: Client,
    pub(crate) engine: u32,
    pub(crate) push: Socket,
    pub(crate) wake_word: WakeWord,
    pub(crate) kick: Notifier,
    pub(crate) board: Region,
    pub(crate) lane: Arc<Region>,
    pub(crate) tx: LaneTx,
    pub(crate) rx: LaneRx,
    pub(crate) agent: Notifier,
    pub(crate) lease: Option<Region>,
}

/// One record, with copies of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) arrival: Arrival,
    pub(crate) bytes: Vec<u8>,
}

impl Ear {
    pub(crate) fn new(agent: &TestAgent) -> Self {
        let mut client = agent.client();
        let (wake_word, wake_word_fd) = WakeWord::create().expect("a wake word");
        let kick = Notifier::new().expect("a notifier");
        let body = EngineHello { pid: std::process::id(), flags: 0 };
        let hello = extended(number::ENGINE_HELLO, &body, size_of::<EngineHelloAnswer>(), 0);
        let mut answer = client.call_with(&hello, &[wake_word_fd.as_fd(), kick.as_fd()]);
        let hello: EngineHelloAnswer = answer.get(0);
        let push = Socket::from(answer.fds.pop().expect("the push socket"));
        let board = Region::map_read_only(answer.fds[0].as_fd(), BOARD_LEN).expect("the board");
        let answer = client.call(&extended(number::WIRE_OPEN, &WireOpen::default(), size_of::<WireOut>(), 0));
        let out: WireOut = answer.get(0);
        assert_eq!(out.lane_len, LANE_LEN as u64);
        assert_eq!(answer.fds.len(), 2 + out.flags as usize);
        let mut fds = answer.fds.into_iter();
        let mut next = || fds.next().expect("counted");
        let lane = Arc::new(Region::map(next().as_fd(), LANE_LEN).expect("the lane"));
        let (tx, rx) = shm::ends(lane.clone(), Side::B);
        let agent = Notifier::from(next());
        let lease = (out.flags == 1).then(|| Region::map(next().as_fd(), 4096).expect("the lease page"));
        Self { client, engine: hello.engine, push, wake_word, kick, board, lane, tx, rx, agent, lease }
    }

    /// Creates a QP and returns its number.
    pub(crate) fn qpn(&mut self) -> u32 {
        self.client.qp().2.qpn
    }

    /// Creates a UD QP in a group and returns its handle.
    pub(crate) fn member(&mut self, gid: [u8; 16]) -> u32 {
        let pd = self.client.alloc_pd();
        let (cq, ..) = self.client.create_cq(4);
        let qp_handle = self.client.create_qp(pd, cq, kind::UD).0.qp_handle;
        let body = AttachMcast { gid, qp_handle, mlid: 0, reserved: 0 };
        assert_eq!(self.client.call(&legacy(number::ATTACH_MCAST, &body, &[], 0)).status, 0);
        qp_handle
    }

    pub(crate) fn leave(&mut self, gid: [u8; 16], qp_handle: u32) {
        let body = AttachMcast { gid, qp_handle, mlid: 0, reserved: 0 };
        assert_eq!(self.client.call(&legacy(number::DETACH_MCAST, &body, &[], 0)).status, 0);
    }

    /// The next record, if there is one.
    pub(crate) fn hear(&mut self) -> Option<Heard> {
        let mut record = [0; RECORD_MAX];
        let len = self.rx.ring.pop(&mut record).expect("the agent keeps to the rules")?;
        let arrival = Arrival::read(&record[..len]).expect("whole");
        assert_eq!((arrival.kind, arrival.lid, arrival.port), (arrival_kind::DATAGRAMS, 0, 0));
        let mut bytes = vec![0; arrival.len as usize];
        if arrival.flags & arrival_flags::BULK != 0 {
            assert!(self.rx.bulk.take(arrival.bulk, &mut bytes));
        } else {
            bytes.copy_from_slice(&record[size_of::<Arrival>()..][..arrival.len as usize]);
        }
        self.rx.ring.publish();
        Some(Heard { arrival, bytes })
    }

    /// All records that are there.
    pub(crate) fn hear_all(&mut self) -> Vec<Heard> {
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// Waits for the next record.
    pub(crate) fn await_record(&mut self) -> Heard {
        eventually("a record", || self.hear())
    }

    /// The agent's sockets.
    pub(crate) fn sockets(&mut self) -> (WireSocketsAnswer, Vec<OwnedFd>) {
        let ask = WireSockets { first: 0, max: 6 };
        let answer = self.client.call(&extended(number::WIRE_SOCKETS, &ask, size_of::<WireSocketsAnswer>(), 0));
        (answer.get(0), answer.fds)
    }
}

/// Waits until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A datagram of `len` bytes for a QP, identified by `mark`.
pub(crate) fn datagram(qpn: u32, len: usize, mark: u8) -> Vec<u8> {
    let mut bytes = vec![mark; len];
    bytes[0] = 4;
    bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    bytes
}
