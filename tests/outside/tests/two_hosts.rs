//! Two hosts in one test: no agent, file, socket, root or environment is needed.

use fabric::{Fabric, Faults};
use outside::{Receiver, Sender, listen};

const LINES: usize = 1000;
const DEPTH: usize = 8;

fn lines_arrive(fabric: &Fabric) -> softhca::Result<()> {
    let (here, there) = (fabric.host(0).open()?, fabric.host(1).open()?);
    let (near, far) = (here.pd()?, there.pd()?);
    let (sent, received) = (here.cq(DEPTH as u32)?, there.cq(DEPTH as u32)?);
    let (left, right) = (near.reliable(&sent).build()?, listen(&far, &received, DEPTH)?);
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let mut sender = Sender::new(&near, left.connect(&to_right)?, sent, DEPTH)?;
    let receiver = Receiver::new(right.connect(&to_left)?, received);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            (0..LINES).for_each(|number| sender.send(&format!("line {number}")).expect("sent"));
            sender.finish().expect("they have arrived");
        });
        (0..LINES).for_each(|number| assert_eq!(receiver.next().expect("received"), format!("line {number}")));
    });
    Ok(())
}

#[test]
fn lines_arrive_in_order() {
    lines_arrive(&Fabric::two_hosts().expect("two agents")).expect("no error");
}

#[test]
fn lines_arrive_in_order_over_a_bad_network() {
    let fabric = Fabric::builder().host("192.0.2.1").host("192.0.2.2").mtu(1024).faults(Faults::all(0.02, 42)).build();
    let fabric = fabric.expect("two agents");
    lines_arrive(&fabric).expect("no error");
    assert!(fabric.switch().counts().lost > 0);
}
