//! Tests that the limits that a device reports are true. The tests reach each limit. One more
//! object is refused, with its errno and a sentence.
//!
//! The limits are those of a device with the default configuration. For counts, one engine has its
//! agent's state beside it ([`direct`]), without threads and sockets between them, so a million
//! objects take seconds. The integration suite tests what a process with a separate agent may have.

#[path = "../common/mod.rs"]
mod common;

mod counts;
mod direct;
mod groups;
mod messages;
mod queues;
mod tables;
mod unmapped;

use abi::errno::Errno;
use engine::Error;

/// Asserts that one more object was refused, with this errno and a sentence that contains these
/// words.
#[track_caller]
fn refused<T>(outcome: Result<T, Error>, errno: Errno, words: &[&str]) {
    let Err(Error { errno: found, reason }) = outcome else { panic!("nobody refused it: {words:?}") };
    assert_eq!(found, errno, "{reason}");
    words.iter().for_each(|word| assert!(reason.contains(word), "{word:?} is not in: {reason}"));
}
