//! Tests of the command lines that `softhca` refuses. It prints one sentence with what was wrong,
//! what is possible and where to look, and exits with the code in its help. It starts nothing.

use std::process::Command;

/// What the program writes to standard error, and its exit code.
fn told(words: &[&str], log: Option<&str>) -> (String, Option<i32>) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let dir = scratch.path().join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
    command.args(words).env("SOFTHCA_DIR", &dir).env_remove("SOFTHCA_LOG").env_remove("SOFTHCA_FAULTS");
    command.envs(log.map(|log| ("SOFTHCA_LOG", log)));
    let output = command.output().expect("it starts");
    assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
    assert!(!dir.join("admin").exists(), "{words:?}: no agent is started");
    (String::from_utf8(output.stderr).expect("text"), output.status.code())
}

#[test]
fn options_that_are_none_are_refused() {
    let cases: [(&[&str], i32, &[&str]); 11] = [
        (&["run", "--bogus"], 125, &["unknown option --bogus", "softhca run --help", "./--bogus"]),
        (&["run", "-x", "--", "true"], 125, &["unknown option -x", "softhca run --help"]),
        (&["run"], 125, &["<COMMAND>", "--help"]),
        (&["run", "--fault", "loose", "--", "true"], 125, &["unknown kind of fault \"loose\"", "kinds are loss"]),
        (&["bench", "-s", "0"], 2, &["'0'", "--sizes", "between 1 byte and", "--help"]),
        (&["bench", "-s", "8,2g"], 2, &["'2g'", "--sizes", "between 1 byte and", "--help"]),
        (&["bench", "-q", "0"], 2, &["queue pairs: 0 is not between 1 and", "softhca bench --help"]),
        (&["bench", "-t", "2"], 2, &["at least one queue pair per thread", "softhca bench --help"]),
        (&["bench", "--seconds", "nan"], 2, &["between 0 and", "softhca bench --help"]),
        (&["capture", "-d", "nan"], 2, &["--duration", "between 0 and", "--help"]),
        (&["--bogus"], 2, &["--bogus", "--help"]),
    ];
    for (words, code, expected) in cases {
        let (errors, ended) = told(words, None);
        assert_eq!(ended, Some(code), "{words:?}: {errors}");
        for part in expected {
            assert!(errors.contains(part), "{words:?}: {part} is not in {errors}");
        }
    }
}

#[test]
fn a_log_filter_that_is_none_is_refused() {
    for (words, code) in [
        (&["agent"][..], 1),
        (&["agent", "--foreground"], 1),
        (&["run", "--", "true"], 125),
        (&["fault", "add", "loss"], 1),
        (&["bench"], 1),
    ] {
        for filter in ["nonsense==", "debg"] {
            let (errors, ended) = told(words, Some(filter));
            assert_eq!(ended, Some(code), "{words:?}: {errors}");
            let begin = format!("SOFTHCA_LOG={filter:?} is no filter");
            for part in [&begin, "error, warn, info, debug or trace", "engine=debug"] {
                assert!(errors.contains(part), "{words:?}: {part} is not in {errors}");
            }
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }
}

/// The folders of nodes stay behind if an agent is killed.
#[test]
fn a_node_without_the_agent_of_its_topology_gets_none_of_its_own() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let node = scratch.path().join("run/nodes/H1");
    std::fs::create_dir_all(&node).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
    let output =
        command.arg("devices").env("SOFTHCA_DIR", &node).env_remove("SOFTHCA_LOG").output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let told = format!("the agent with the topology does not answer in {}", scratch.path().join("run").display());
    assert!(errors.contains(&told) && errors.contains("softhca agent --topology FILE"), "{errors}");
    assert!(!node.join("admin").exists(), "no agent is started");
}
