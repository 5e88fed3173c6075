//! A program that always has something to send to another one. Principal type: [`Flow`].

use std::sync::Arc;
use std::time::Duration;

use super::net::{Net, connect_by_lid, handle, start};
use crate::common::{Plan, QKEY, Side};
use abi::cq::{Wc, status};
use abi::post::opcode;
use engine::{Ah, Cq, SendWr, Service};

/// Requests that are posted at one time.
const DEPTH: u64 = 16;
/// Bytes of a message of a connection, and of a datagram. Full packets are a little longer than 64
/// units of arbitration, so a weight of 64 is one packet.
const MESSAGE: usize = 16 * 1024;
const DATAGRAM: usize = 4096;

pub(crate) struct Flow {
    from: Side,
    to: Side,
    /// Of datagrams: where they go.
    handle: Option<Arc<Ah>>,
    posted: u64,
    completed: u64,
    /// Messages that have arrived; of WRITEs, those that have completed.
    arrived: u64,
}

impl Flow {
    /// A flow between two hosts, by LID and with this service level.
    pub(crate) fn new(net: &mut Net, service: Service, from: usize, to: usize, sl: u8) -> Self {
        let plan = Plan { timeout: 18, ..Plan::new(service) };
        let lids = [net.lid(from), net.lid(to)];
        let (from, to) = (net.side(from, &plan), net.side(to, &plan));
        let handle = if service == Service::Ud {
            start(&from);
            start(&to);
            (0..32).for_each(|_| to.recv(0, 0, DATAGRAM + 40));
            Some(handle(&from, lids[1], sl))
        } else {
            connect_by_lid([(&from, lids[0]), (&to, lids[1])], sl);
            None
        };
        Self { from, to, handle, posted: 0, completed: 0, arrived: 0 }
    }

    /// Bytes that have arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.arrived * if self.handle.is_some() { DATAGRAM } else { MESSAGE } as u64
    }

    /// Requests that have not completed.
    pub(crate) fn outstanding(&self) -> u64 {
        self.posted - self.completed
    }

    /// Takes completions, and posts as long as `more` and there is room.
    fn go_on(&mut self, more: bool) {
        let done = take(&self.from.scq);
        self.completed += done;
        match &self.handle {
            None => self.arrived += done,
            Some(_) => {
                let came = take(&self.to.rcq);
                (0..came).for_each(|_| self.to.recv(0, 0, DATAGRAM + 40));
                self.arrived += came;
            }
        }
        while more && self.outstanding() < DEPTH {
            self.post();
        }
    }

    fn post(&mut self) {
        let Self { from, to, .. } = self;
        match &self.handle {
            Some(handle) => {
                let ud = Some((&**handle, to.qp.qpn(), QKEY));
                from.post(&SendWr { ud, sges: &from.sge(0, DATAGRAM), ..SendWr::default() });
            }
            None => from.post(&SendWr {
                opcode: opcode::RDMA_WRITE,
                remote_addr: to.memory.addr(0),
                rkey: to.mr.rkey(),
                sges: &from.sge(0, MESSAGE),
                ..SendWr::default()
            }),
        }
        self.posted += 1;
    }
}

/// Takes all completions, which are successful.
fn take(cq: &Cq) -> u64 {
    let mut count = 0;
    loop {
        let mut wcs = [Wc::default(); 8];
        let some = cq.poll(&mut wcs).expect("a device");
        assert!(wcs[..some].iter().all(|wc| wc.status == status::SUCCESS), "{:?}", engine::reason::last(4));
        count += some as u64;
        if some < wcs.len() {
            return count;
        }
    }
}

/// Lets the flows send for a time. Returns the bytes of each that have arrived meanwhile.
pub(crate) fn run(net: &mut Net, time: Duration, flows: &mut [Flow]) -> Vec<u64> {
    let before: Vec<u64> = flows.iter().map(Flow::bytes).collect();
    let go_on = || {
        flows.iter_mut().for_each(|flow| flow.go_on(true));
        false
    };
    net.simulation.run_until(time, go_on);
    flows.iter().zip(before).map(|(flow, before)| flow.bytes() - before).collect()
}

/// Waits until everything that was posted has completed. Returns whether that was within a time.
pub(crate) fn finish(net: &mut Net, time: Duration, flows: &mut [Flow]) -> bool {
    net.simulation.run_until(time, || {
        flows.iter_mut().for_each(|flow| flow.go_on(false));
        flows.iter().all(|flow| flow.outstanding() == 0)
    })
}
