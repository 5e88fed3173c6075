//! Asks `modify::check` about every state × state × service, and compares the result with a
//! committed table: required attributes, then optional ones. Attribute values are not tested here.
//! Run with `UPDATE_SNAPSHOT=1` to write the table after an intended change.

use softhca_protocol::modify::{Attributes, ModifyError, check, counting};
use softhca_protocol::{Service, State};
use std::fmt::Write;

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/modify.snapshot");

/// The attributes of one transition, found by calling `check`.
fn ask(service: Service, current: State, next: State) -> String {
    let required = match check(service, current, next, Attributes::NONE) {
        Ok(()) => Attributes::NONE,
        Err(ModifyError::Missing { missing, .. }) => missing,
        Err(ModifyError::NoSuchTransition { .. }) => return "-".into(),
        Err(error) => panic!("{error}"),
    };
    let bits = (0..32).map(|bit| Attributes(1 << bit));
    for one in bits.clone().filter(|&one| required.contains(one)) {
        assert!(
            check(service, current, next, required.without(one)).is_err(),
            "{service} {current} {next}: {one} is required"
        );
    }
    let optional = bits
        .filter(|&one| one != Attributes::STATE && !required.contains(one))
        .filter(|&one| check(service, current, next, required | one).is_ok())
        .fold(Attributes::NONE, |all, one| all | one);
    assert_eq!(check(service, current, next, required | optional | Attributes::STATE), Ok(()));
    format!("[{required}] {optional}").trim_end().into()
}

#[test]
fn every_transition_of_every_service() {
    let mut table = String::new();
    for service in Service::ALL {
        for current in State::ALL {
            for next in State::ALL {
                let rule = ask(service, current, next);
                writeln!(table, "{service} {current} -> {next}: {rule}").expect("a string takes everything");
            }
        }
    }
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(SNAPSHOT, &table).expect("the snapshot can be written");
    }
    let committed = std::fs::read_to_string(SNAPSHOT).expect("the snapshot is there");
    for (ours, theirs) in table.lines().zip(committed.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(table, committed);
}

#[test]
fn refusals_name_what_is_wrong() {
    let error = |service, current, next, mask| check(service, current, next, mask).expect_err("refused").to_string();
    assert_eq!(error(Service::Rc, State::Reset, State::Rts, Attributes::STATE), "RC QPs do not go from RESET to RTS");
    assert_eq!(
        error(Service::Uc, State::Reset, State::Init, Attributes::STATE | Attributes::PORT),
        "UC RESET to INIT needs ACCESS_FLAGS PKEY_INDEX too"
    );
    assert_eq!(
        error(Service::Ud, State::Rtr, State::Rts, Attributes::SQ_PSN | Attributes::AV | Attributes(1 << 30)),
        "UD RTR to RTS does not take AV bit 30"
    );
}

#[test]
fn each_state_admits_its_requests() {
    let table: Vec<_> = State::ALL
        .map(|state| (state.as_u32(), state.takes_sends(), state.takes_receives(), state.serves()))
        .into_iter()
        .collect();
    assert_eq!(
        table,
        [
            (0, false, false, false),
            (1, false, true, false),
            (2, false, true, true),
            (3, true, true, true),
            (4, true, true, true),
            (5, true, true, true),
            (6, true, true, false),
        ]
    );
    for state in State::ALL {
        assert_eq!(State::from_u32(state.as_u32()), Some(state));
    }
    assert_eq!(State::from_u32(7), None);
}

/// Programs name the same attributes for both ends of XRC as for RC. The table of each end lacks
/// the attributes of the other end.
#[test]
fn attributes_of_the_other_xrc_end_are_ignored() {
    let rc = |next, more| {
        let av = Attributes::AV | Attributes::PATH_MTU | Attributes::DEST_QPN | Attributes::RQ_PSN;
        let sends = Attributes::TIMEOUT | Attributes::RETRY_CNT | Attributes::RNR_RETRY | Attributes::SQ_PSN;
        let mask = match next {
            State::Rtr => av | Attributes::MAX_DEST_RD_ATOMIC | Attributes::MIN_RNR_TIMER,
            _ => sends | Attributes::MAX_QP_RD_ATOMIC,
        };
        mask | more
    };
    for service in [Service::XrcIni, Service::XrcTgt] {
        for (current, next) in [(State::Init, State::Rtr), (State::Rtr, State::Rts)] {
            let mask = counting(service, rc(next, Attributes::NONE));
            assert_eq!(check(service, current, next, mask), Ok(()), "{service} {current} {next}");
            let strange = counting(service, rc(next, Attributes::QKEY));
            assert!(check(service, current, next, strange).is_err(), "{service} {current} {next} with a Q_Key");
        }
    }
    assert_eq!(counting(Service::Rc, Attributes(u32::MAX)), Attributes(u32::MAX));
}

#[test]
fn an_attribute_is_in_a_set_once() {
    let (one, both) = (Attributes(1), Attributes(3));
    assert_eq!((one | one, one | both, both.without(one)), (one, both, Attributes(2)));
}
