//! Tests of the score that tells the kernel which process to end when memory runs out. An agent of
//! every user gets a low score. No other process gets it, neither a user's own agent nor a program.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

const SCORE: &str = "/proc/self/oom_score_adj";
/// The score of an agent that serves every user.
const SYSTEM: &str = "-900";

/// A softhca whose library is a stand-in, which nothing here loads, and a run directory.
struct Place {
    folder: TempDir,
    /// The last agent was started with `--system`.
    system: bool,
}

impl Place {
    fn new(system: bool) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let place = Self { folder, system };
        for name in ["bin", "lib/softhca"] {
            fs::create_dir_all(place.path(name)).expect("made");
        }
        fs::hard_link(env!("CARGO_BIN_EXE_softhca"), place.path("bin/softhca")).expect("linked");
        let (source, library) = (place.path("source.c"), place.path("lib/softhca/libibverbs.so.1"));
        fs::write(&source, "int nothing;\n").expect("written");
        let built = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(built.expect("gcc runs").success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn softhca(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.path("bin/softhca"));
        command.args(words).env("SOFTHCA_DIR", self.path("run")).env("XDG_RUNTIME_DIR", self.folder.path());
        for name in ["SOFTHCA_LOG", "SOFTHCA_FAULTS", "LD_LIBRARY_PATH", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.output().expect("it starts")
    }

    /// Starts an agent in the background and reads its score.
    fn agent(&self) -> String {
        let words: &[&str] = if self.system { &["agent", "--system"] } else { &["agent"] };
        let started = self.softhca(words);
        assert!(started.status.success(), "{started:?}");
        let pid = fs::read_to_string(self.path("run/agent.pid")).expect("an agent");
        score(&format!("/proc/{}/oom_score_adj", pid.trim()))
    }

    /// The score of a program that `softhca run` starts.
    fn program(&self) -> String {
        let output = self.softhca(&["run", "--", "cat", SCORE]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.softhca(if self.system { &["agent", "--stop", "--system"] } else { &["agent", "--stop"] });
    }
}

fn score(file: &str) -> String {
    fs::read_to_string(file).expect("read").trim().to_owned()
}

#[test]
fn only_the_agent_of_every_user_is_ended_last() {
    // The kernel asks for CAP_SYS_RESOURCE, which root has not in every container.
    let lower = format!("echo {SYSTEM} > {SCORE}");
    let may_lower = Command::new("sh").args(["-c", &lower]).output().expect("sh runs").status.success();
    if !may_lower {
        eprintln!("skipped: this user may not lower a score");
        return;
    }
    let ours = score(SCORE);
    assert_ne!(ours, SYSTEM, "the test cannot tell the scores apart");
    let place = Place::new(true);
    assert_eq!(place.agent(), SYSTEM);
    assert_eq!(place.program(), ours, "a program under an agent of every user");
    let place = Place::new(false);
    assert_eq!(place.agent(), ours, "a user's own agent");
    assert_eq!(place.program(), ours, "a program under a user's own agent");
    // `softhca run` starts this agent.
    let place = Place::new(false);
    assert_eq!(place.program(), ours);
    let pid = fs::read_to_string(place.path("run/agent.pid")).expect("an agent");
    assert_eq!(score(&format!("/proc/{}/oom_score_adj", pid.trim())), ours);
}
