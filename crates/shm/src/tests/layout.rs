//! Which side writes which line of a lane, and how many pages a lane with little traffic takes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::lane::{LANE_LEN, LaneRx, LaneTx, Side, ends};
use crate::region::Region;
use crate::ring::{BULK_AT, BULK_HEAD, CELL, CELLS, DIRECTION, DIRECTION_LEN, RECORD_MAX, RING_HEAD, WAITING, cell_at};

#[test]
fn each_line_is_of_one_word_or_one_cell_of_one_direction() {
    let mut owners = HashMap::new();
    for direction in [0, DIRECTION] {
        let cells = (0..CELLS).map(|index| (cell_at(index), format!("cell {index} from {direction}")));
        let words = [RING_HEAD, BULK_HEAD, WAITING].map(|at| (at, format!("word {at} from {direction}")));
        for (at, name) in cells.chain(words) {
            assert!(at.is_multiple_of(CELL) && at + CELL <= DIRECTION_LEN, "{name}: {at}");
            assert!(direction + at + CELL <= BULK_AT, "{name} is in the bulk area");
            let other = owners.insert((direction + at) / CELL, name.clone());
            assert_eq!(other, None, "beside {name}");
        }
    }
    assert_eq!(cell_at(CELLS), cell_at(0), "the index counts on");
    assert_eq!(cell_at(u32::MAX), cell_at(CELLS - 1));
}

#[test]
fn a_quiet_lane_uses_one_page_and_a_busy_lane_all() {
    let (region, fd) = Region::create("softhca-test", LANE_LEN).unwrap();
    let region = Arc::new(region);
    let pages = || rustix::fs::fstat(&fd).unwrap().st_blocks * 512 / 4096;
    let (mut a, mut b) = (ends(region.clone(), Side::A), ends(region, Side::B));
    let say = |(tx, _): &mut (LaneTx, LaneRx), (_, rx): &mut (LaneTx, LaneRx), len: usize| {
        tx.ring.push(&vec![7; len]).unwrap();
        assert!(rx.ring.glance().sees(rx.ring.position()) && rx.ring.has_next());
        assert!(rx.ring.pop(&mut [0; RECORD_MAX]).unwrap().is_some());
        rx.ring.publish();
        assert!(!rx.ring.peer_waiting() && tx.bulk.idle());
    };
    for _ in 0..5 {
        say(&mut a, &mut b, RECORD_MAX);
        say(&mut b, &mut a, RECORD_MAX);
    }
    assert_eq!(pages(), 1);
    for _ in 0..CELLS {
        say(&mut a, &mut b, 60);
        say(&mut b, &mut a, 60);
    }
    assert_eq!(pages(), (BULK_AT / 4096) as i64);
}
