//! Tests of the table alone: numbers, keys, timers and counts. The protocol is not used.

use super::*;
use crate::cm::origin::Path;
use crate::cm::params::Connection;
use wire::Qpn;

fn table(ids: u32) -> Table {
    Table::new(&Config { secret: 0x1234_5678_9abc_def0, ids, ..Config::default() })
}

fn entry(number: u32) -> CmEntry {
    let path = Path { dgid: [7; 16], ..Path::default() };
    let facts = Connection { remote_comm_id: number, remote_qpn: Qpn::new(number), path, ..Connection::default() };
    CmEntry::new(facts)
}

#[test]
fn a_number_leads_to_its_entry_and_not_to_its_successor() {
    let mut table = table(1);
    let index = table.insert(entry(1)).unwrap();
    let (id, comm_id) = (table.id(index), table.entry(index).facts.local_comm_id);
    assert_eq!(table.find(comm_id), Some(index));
    assert_eq!(table.insert(entry(2)), None);
    table.remove(index);
    assert_eq!(table.find(comm_id), None);
    let next = table.insert(entry(2)).unwrap();
    assert_eq!(next, index);
    assert_eq!(table.find(comm_id), None);
    assert_eq!(table.resolve(id), Err(Error::Stale));
    assert_eq!(table.resolve(table.id(next)), Ok(next));
}

#[test]
fn keys_and_timers_go_with_the_state() {
    let mut table = table(10);
    let index = table.insert(entry(5)).unwrap();
    table.enter(index, CmState::ReqRcvd, Some(Time(9)));
    table.link_number(index);
    table.link_qpn(index);
    let entry = table.entry(index);
    let (number, qpn) = (entry.number_key(), entry.qpn_key());
    assert_eq!((table.find_key(&number), table.find_key(&qpn)), (Some(index), Some(index)));
    assert_eq!(table.counts(), Counts { ids: 1, undecided: 1, resting: 0, timers: 1, keys: 2 });
    table.enter(index, CmState::TimeWait, Some(Time(12)));
    assert_eq!((table.find_key(&number), table.find_key(&qpn)), (Some(index), None));
    assert_eq!(table.counts(), Counts { ids: 1, undecided: 0, resting: 1, timers: 1, keys: 1 });
    assert_eq!((table.next_time(), table.pop_due(Time(11))), (Some(Time(12)), None));
    assert_eq!(table.pop_due(Time(12)), Some(index));
    table.remove(index);
    assert_eq!(table.counts(), Counts::default());
}

#[test]
fn a_key_that_leads_to_a_newer_entry_stays() {
    let mut table = table(10);
    let [old, new] = [3, 3].map(|number| table.insert(entry(number)).unwrap());
    for index in [old, new] {
        table.enter(index, CmState::Established, None);
        table.link_qpn(index);
    }
    let key = table.entry(new).qpn_key();
    table.remove(old);
    assert_eq!(table.find_key(&key), Some(new));
}

#[test]
fn an_entry_without_a_qp_number_adds_no_key() {
    let mut table = table(10);
    let index = table.insert(entry(0)).unwrap();
    table.link_qpn(index);
    assert_eq!(table.counts().keys, 0);
}

#[test]
fn a_crowd_leaves_no_memory_behind_and_no_number_comes_again() {
    let mut table = table(1 << 20);
    let mut numbers = std::collections::HashSet::new();
    for round in 0..3 {
        let indices: Vec<u32> = (0..5000).map(|number| table.insert(entry(number + 1)).unwrap()).collect();
        for &index in &indices {
            table.enter(index, CmState::ReqRcvd, None);
            table.link_number(index);
            assert!(numbers.insert(table.entry(index).facts.local_comm_id), "round {round}");
        }
        for index in indices {
            table.remove(index);
        }
        assert_eq!(table.counts(), Counts::default());
        assert!(table.slots.capacity() == 0 && table.keys.capacity() <= 2 * SMALL);
    }
}

/// In a REJ, the number 0 means "none".
#[test]
fn no_entry_has_the_number_0() {
    // One index and generation of each secret have the number 0.
    let zero = |secret| {
        let numbers = Numbers::new(secret);
        let index = numbers.index(0);
        (0..1 << 12).find(|generation| numbers.number(index, *generation) == 0).map(|generation| (index, generation))
    };
    let small = |secret: u64| zero(secret).filter(|(index, _)| *index < 64).map(|place| (secret, place));
    let (secret, (index, generation)) = (0..).find_map(small).expect("a secret");
    let mut table = Table::new(&Config { secret, ids: 100, ..Config::default() });
    table.first_generation = generation;
    for expected in 0..=index {
        let index = table.insert(entry(1)).unwrap();
        assert_eq!(index, expected);
    }
    let comm_id = table.entry(index).facts.local_comm_id;
    assert_ne!(comm_id, 0);
    assert_eq!((table.find(comm_id), table.id(index).generation), (Some(index), generation + 1));
}

#[test]
fn the_secret_decides_where_keys_are_in_the_map() {
    assert_ne!(Keyed(1).hash_one(5), Keyed(2).hash_one(5));
}
