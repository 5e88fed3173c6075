//! The echo of examples/, inside one process.

use fabric::Fabric;
use softhca::aio::Listener;

#[path = "../../../../examples/echo.rs"]
#[allow(dead_code, reason = "its main function is for processes")]
mod example;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_echo_answers_between_hosts() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (here, there) = (fabric.host(0).open().expect("a device"), fabric.host(1).open().expect("a device"));
    let listener = Listener::bind(&there, "10.0.0.2:0".parse().expect("an address")).expect("it listens");
    let address = listener.local_addr();
    let server = tokio::spawn(async move { example::serve(&there, listener).await });
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..20 {
        let here = here.clone();
        asking.spawn(async move { example::ask(&here, address, &format!("word {number}")).await });
    }
    let mut answers = asking.join_all().await.into_iter().collect::<Result<Vec<_>, _>>().expect("answers");
    answers.sort_unstable();
    let mut words: Vec<_> = (0..20).map(|number| format!("word {number}")).collect();
    words.sort_unstable();
    assert_eq!(answers, words);
    server.abort();
}
