//! Shared parts of the tests: pairs of queue pairs on a private agent.

#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use fabric::Fabric;
use softhca::{Completion, Connected, Context, Cq, Pd, Qp, QpBuilder};

/// Time limit of every wait; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The next completion, successful or not.
pub(crate) fn next(cq: &Cq) -> Completion {
    cq.wait_for(PATIENCE).expect("no error").unwrap_or_else(|| panic!("no completion; {:?}", softhca::reasons(5)))
}

/// One program of two.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) sent: Cq,
    pub(crate) received: Cq,
}

impl Side {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        let context = fabric.open().expect("a device");
        let pd = context.pd().expect("a PD");
        let (sent, received) = (context.cq(64).expect("a CQ"), context.cq(64).expect("a CQ"));
        Self { context, pd, sent, received }
    }
}

/// Two programs on one agent.
pub(crate) fn sides() -> (Fabric, Side, Side) {
    let fabric = Fabric::start().expect("an agent");
    let (a, b) = (Side::new(&fabric), Side::new(&fabric));
    (fabric, a, b)
}

/// Connects two queue pairs that `make` creates.
pub(crate) fn connect<S: Connected>(
    a: &Side,
    b: &Side,
    make: impl for<'a> Fn(&'a Side) -> QpBuilder<'a, S>,
) -> (Qp<S>, Qp<S>) {
    let (left, right) = (make(a).build().expect("a QP"), make(b).build().expect("a QP"));
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"))
}
