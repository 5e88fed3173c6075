//! Debian's perftest on one host: every test that it has for the services of this stack, and the options that its users type.
//!
//! The figures are not judged here (`cargo xtask bench` does), only that there are some.

use softhca_suite::{Pair, Room, User, lists};

#[track_caller]
fn runs(user: User, words: &[&str]) {
    let room = Room::of(user).expect("a room");
    lists::expect_figures(words, &Pair::must_succeed(&room, words));
}

/// One test per row, as the suite's own user.
macro_rules! perftests {
    ($($name:ident: $($word:literal)+;)*) => { $(
        #[test]
        fn $name() {
            runs(User::Me, &[$($word),+]);
        }
    )* };
}

/// One test per row, as an ordinary user.
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

softhca_suite::perftest_list!(perftests);
softhca_suite::perftest_selection!(ordinary_perftests);
