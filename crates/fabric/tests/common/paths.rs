//! Hosts for tests of path migration: each host has two addresses, so each connection has two
//! paths.

/// Runs a test on one host, and between hosts.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! paths_everywhere {
    ($($name:ident)*) => { $(mod $name {
        use crate::common::Fabric;
        use ::fabric::Faults;

        #[test]
        fn on_one_host() {
            super::$name(&Fabric::configured("addresses = ['127.0.0.1', '127.0.0.2']"));
        }

        #[test]
        fn between_hosts() {
            super::$name(&Fabric::two_paths(4096, Faults::default()));
        }

        #[test]
        fn between_hosts_with_small_packets() {
            super::$name(&Fabric::two_paths(1024, Faults::default()));
        }
    })* };
}
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use paths_everywhere;

/// Runs a test between hosts, with and without packet loss.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! paths_even_with_losses {
    ($($name:ident)*) => { $(mod $name {
        use crate::common::Fabric;
        use ::fabric::Faults;

        #[test]
        fn between_hosts() {
            super::$name(&Fabric::two_paths(4096, Faults::default()));
        }

        #[test]
        fn between_hosts_with_losses() {
            super::$name(&Fabric::two_paths(1024, Faults::loss(0.03, 5)));
        }
    })* };
}
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use paths_even_with_losses;
