//! Waiting without sleeping: for completions by polling, for events on their descriptor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::cq::Wc;
use abi::errno::Errno;
use abi::reason::{Cause, DropRecord};
use engine::{AsyncEvent, Cq, Engine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::Side;

/// Time limit of every wait; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `found` returns a value; `what` names it.
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < limit, "{what} did not come; {:?}", engine::reason::last(5));
        std::thread::yield_now();
    }
}

/// The next completion.
pub(crate) fn next(cq: &Cq) -> Wc {
    until("a completion", || {
        let mut wc = [Wc::default()];
        (cq.poll(&mut wc).expect("the CQ polls") == 1).then(|| wc[0])
    })
}

/// Whether the descriptor becomes readable within `limit`.
pub(crate) fn readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("a timeout");
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).expect("it polls") == 1
}

/// Sets O_NONBLOCK, as programs do.
pub(crate) fn nonblocking(fd: BorrowedFd<'_>) {
    let flags = fcntl_getfl(fd).expect("its flags");
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).expect("O_NONBLOCK");
}

/// The next async event.
pub(crate) fn event(engine: &Arc<Engine>) -> AsyncEvent {
    nonblocking(engine.async_fd());
    loop {
        assert!(readable(engine.async_fd(), PATIENCE), "no async event; {:?}", engine::reason::last(5));
        match engine.async_event() {
            // The event was removed together with its object.
            Err(Errno::EAGAIN) => {}
            event => return event.expect("an event"),
        }
    }
}

/// Checks that there is no async event now.
pub(crate) fn no_event(engine: &Arc<Engine>) {
    nonblocking(engine.async_fd());
    assert_eq!(engine.async_event(), Err(Errno::EAGAIN));
}

/// Waits until the side's engine has dropped a packet to its QP for this cause. Fails if the side
/// receives a message meanwhile.
pub(crate) fn dropped(side: &Side, cause: Cause) {
    let is_it = |record: &DropRecord| record.cause == cause as u32 && record.dest_qp == side.qp.qpn();
    until("the drop", || {
        assert_eq!(side.rcq.poll(&mut [Wc::default()]), Ok(0), "the packet was received");
        side.engine.drops().iter().any(is_it).then_some(())
    });
}
