//! One connection of the two hosts: a queue pair on each side and the pipes between them. It checks
//! each message when it arrives. Principal type: [`Connection`].

use crate::common::Ram;
use crate::plan::Work;
use crate::wire::{Pipe, Random};
use softhca_iwarp::{Close, Event, PostError, Status, Stream, Transmit};
use std::time::Duration;

/// The memory of both hosts.
pub(crate) type Rams = [Ram; 2];

/// One side of a connection.
pub(crate) struct End {
    pub(crate) stream: Stream,
    pub(crate) plan: Vec<Work>,
    /// Work requests of the plan that the stream was asked to take.
    pub(crate) asked: usize,
    /// The work requests that the stream has taken.
    pub(crate) taken: Vec<u64>,
    pub(crate) completions: Vec<(u64, Status)>,
    /// Receive requests that ended.
    pub(crate) received: Vec<u64>,
    /// Messages that arrived.
    pub(crate) messages: usize,
    pub(crate) closed: Option<Close>,
    /// The peer's end was passed on, or the connection is gone.
    over: bool,
}

impl End {
    pub(crate) fn new(stream: Stream, plan: Vec<Work>) -> End {
        End {
            stream,
            plan,
            asked: 0,
            taken: Vec::new(),
            completions: Vec::new(),
            received: Vec::new(),
            messages: 0,
            closed: None,
            over: false,
        }
    }
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) ends: [End; 2],
    /// The pipe of each side's bytes.
    pub(crate) pipes: [Pipe; 2],
    /// Data is right unless it was corrupted without CRCs.
    pub(crate) is_trusted: bool,
    /// Nothing goes wrong, so everything succeeds.
    pub(crate) is_clean: bool,
}

impl Connection {
    /// Posts the next work request of a side. Returns whether that has changed anything.
    pub(crate) fn post(&mut self, side: usize) -> bool {
        let end = &mut self.ends[side];
        let Some(work) = end.plan.get(end.asked) else { return false };
        match end.stream.post(work.request()) {
            Ok(()) => end.taken.push(work.id),
            Err(PostError::Full) => return false,
            Err(PostError::Closed) => {}
            Err(PostError::NoReads) => panic!("READs were agreed on"),
        }
        end.asked += 1;
        true
    }

    /// Sends the next FPDU of a side. Returns whether there was anything to do.
    pub(crate) fn transmit(&mut self, side: usize, now: Duration, rams: &mut Rams, random: &mut Random) -> bool {
        let end = &mut self.ends[side];
        let mut buffer = vec![0; end.stream.room()];
        let transmit = end.stream.poll_transmit(now, &mut buffer, &mut rams[side]);
        self.take_events(side, rams);
        match transmit {
            Transmit::Nothing => return false,
            Transmit::Full => panic!("the buffer has the room that was asked for"),
            Transmit::Bytes(len) => {
                assert!(!self.pipes[side].ended, "nothing is sent behind the end");
                buffer.truncate(len);
                if self.pipes[side].send(now, buffer, random) {
                    self.reset(rams);
                }
            }
            Transmit::Finish => self.pipes[side].ended = true,
            Transmit::Reset => self.reset(rams),
        }
        true
    }

    /// Passes what arrives at a side. Returns whether anything did.
    pub(crate) fn deliver(&mut self, side: usize, now: Duration, rams: &mut Rams, random: &mut Random) -> bool {
        if self.ends[side].over {
            return false;
        }
        let bytes = self.pipes[1 - side].take(now, random);
        if bytes.is_empty() && !self.pipes[1 - side].is_at_end() {
            return false;
        }
        let end = &mut self.ends[side];
        if bytes.is_empty() {
            end.over = true;
            end.stream.receive_end();
        } else {
            end.stream.receive(now, &bytes, &mut rams[side]);
        }
        self.take_events(side, rams);
        true
    }

    /// Handles the timers of a side that are due.
    pub(crate) fn expire(&mut self, side: usize, now: Duration, rams: &Rams) {
        let stream = &mut self.ends[side].stream;
        if stream.poll_timeout().is_some_and(|at| at <= now) {
            stream.handle_timeout(now);
            self.take_events(side, rams);
        }
    }

    pub(crate) fn close(&mut self, side: usize, now: Duration, rams: &Rams) {
        self.ends[side].stream.close(now);
        self.take_events(side, rams);
    }

    /// The connection is gone, and so is what was under way.
    fn reset(&mut self, rams: &Rams) {
        for side in 0..2 {
            self.pipes[side].clear();
            self.ends[side].over = true;
            self.ends[side].stream.lost();
            self.take_events(side, rams);
        }
    }

    fn take_events(&mut self, side: usize, rams: &Rams) {
        while let Some(event) = self.ends[side].stream.poll_event() {
            assert_eq!(self.ends[side].closed, None, "{event:?} behind the last event");
            match event {
                Event::Ready | Event::Terminated { .. } => {}
                Event::Completed { work, status } => self.ends[side].completions.push((work, status)),
                Event::Received(received) => {
                    self.ends[side].received.push(received.receive);
                    let data = &rams[side].receives[&received.receive][..received.len as usize];
                    self.check_message(side, data, received.immediate, &rams[side]);
                    self.ends[side].messages += 1;
                }
                Event::ReceiveFailed { receive, .. } => self.ends[side].received.push(receive),
                Event::Closed(close) => self.ends[side].closed = Some(close),
            }
        }
    }

    /// The next message of the peer has arrived, and so has all that the peer sent before.
    fn check_message(&self, side: usize, data: &[u8], immediate: Option<[u8; 8]>, ram: &Ram) {
        if !self.is_trusted {
            return;
        }
        let plan = &self.ends[1 - side].plan;
        let mut messages = plan.iter().enumerate().filter(|(_, work)| work.is_message());
        let (nth, work) = messages.nth(self.ends[side].messages).expect("no more messages than posts");
        match immediate {
            Some(bytes) => assert_eq!(bytes, work.id.to_be_bytes()),
            None => assert!(work.has_data(data), "{work:?}"),
        }
        assert!(plan[..=nth].iter().all(|work| work.is_placed(ram)), "all before {work:?} is placed");
    }
}
