//! An engine whose own thread panics: nothing waits for ever.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, channel};

use crate::common::wait::event;
use crate::common::{Fabric, Plan, Side};
use abi::cq::status;
use abi::event::kind;
use engine::{Answer, Control, Engine, Error, SocketControl};
use parking_lot::Mutex;

/// A connection to the agent on which the engine's thread panics when the test says so.
struct Broken {
    agent: SocketControl,
    go: Mutex<Receiver<()>>,
}

impl Control for Broken {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer, Error> {
        self.agent.call(request, fds)
    }

    fn enter(&self) {
        self.go.lock().recv().expect("the test goes on");
        panic!("a bug of the engine's own thread");
    }

    fn close(&self) {
        self.agent.close();
    }
}

#[test]
fn the_device_is_lost_when_the_engines_thread_panics() {
    let fabric = Fabric::start();
    let (say, go) = channel();
    let agent = SocketControl::open(&fabric.node(0), 0).expect("an agent");
    let engine = Engine::open(Box::new(Broken { agent, go: Mutex::new(go) })).expect("a context");
    let side = Side::new(&engine, &Plan::rc());
    side.init();
    side.recv(1, 0, 8);
    say.send(()).expect("the thread waits");
    assert_eq!(event(&engine).kind, kind::DEVICE_FATAL);
    let received = side.received();
    assert_eq!((received.wr_id, received.status), (1, status::WR_FLUSH_ERR));
    engine.close();
}
