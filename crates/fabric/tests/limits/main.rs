//! The limits that a device reports are true: each is reached here, and one more is refused, with its errno and a sentence.
//!
//! Figures are those of a device that nobody configured. What is counted is counted by one engine that has its agent's world
//! beside it ([`direct`]), without threads and sockets between them, so that a million costs seconds. What a process with an agent of its
//! own may have is the suite's to show.

#[path = "../common/mod.rs"]
mod common;

mod counts;
mod direct;
mod groups;
mod messages;
mod queues;
mod tables;

use abi::errno::Errno;
use engine::Error;

/// Asserts that one more was refused, with this errno and a sentence that says what there is.
#[track_caller]
fn refused<T>(outcome: Result<T, Error>, errno: Errno, words: &[&str]) {
    let Err(Error { errno: found, reason }) = outcome else { panic!("nobody refused it: {words:?}") };
    assert_eq!(found, errno, "{reason}");
    words.iter().for_each(|word| assert!(reason.contains(word), "{word:?} is not in: {reason}"));
}
