//! Runs Debian's perftest on one host: every test for the services of this stack, with the options
//! that users type.
//!
//! These tests check only that the programs print figures. `cargo xtask bench` judges the figures.

use harness::{Pair, Room, User, lists};

#[track_caller]
fn runs(user: User, words: &[&str]) {
    let room = Room::of(user).expect("a room");
    lists::expect_figures(words, &Pair::must_succeed(&room, words));
}

/// One test for each row, as the suite's own user.
macro_rules! perftests {
    ($($name:ident: $($word:literal)+;)*) => { $(
        #[test]
        fn $name() {
            runs(User::Me, &[$($word),+]);
        }
    )* };
}

/// One test for each row, as an ordinary user.
macro_rules! ordinary_perftests {
    ($($name:ident: $($word:literal)+;)*) => {
        mod ordinary_user { $(
            #[test]
            fn $name() {
                super::runs(super::User::Nobody, &[$($word),+]);
            }
        )* }
    };
}

harness::perftest_list!(perftests);
harness::perftest_sizes_list!(perftests);
harness::perftest_selection!(ordinary_perftests);
