//! Tests on real memory and with real threads; loom checks the interleavings (`loom_models`).
#![allow(clippy::unwrap_used, reason = "in a test, where it failed is all there is to say")]

mod capture_ring;
mod hostile;
mod kernel;
mod layout;
mod oracle;
mod stress;

use std::sync::Arc;

use crate::region::Region;

/// A lane's region, followed by a page that must stay untouched: see [`untouched`].
fn lane() -> Arc<Region> {
    let (region, _) = Region::create("softhca-test", crate::LANE_LEN + GUARD).unwrap();
    region.copy_in(crate::LANE_LEN, &[0x5a; GUARD]);
    Arc::new(region)
}

const GUARD: usize = 4096;

fn untouched(region: &Region) -> bool {
    let mut guard = [0; GUARD];
    region.copy_out(crate::LANE_LEN, &mut guard);
    guard.iter().all(|&byte| byte == 0x5a)
}
