//! The time of an interface, which is an argument here. Principal type: [`Time`].

/// The time since some fixed moment.
pub type Time = std::time::Duration;
