//! Tests of `softhca doctor -- PROGRAM` with programs that cannot use softhca, and of `softhca run`
//! with programs that do not start. The programs are real ELF files, built here with gcc, with a
//! small library in place of softhca's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// The source of the library in softhca's place.
const LIBRARY: &str = "const char *ibv_old(void) { return \"old\"; }\n";
const VERSIONS: &str = "IBVERBS_1.0 { global: ibv_old; local: *; };\n";

/// The source of a newer library.
const NEWER: &str = "const char *ibv_old(void) { return \"other\"; }\nconst char *ibv_new(void) { return \"new\"; }\n";
const NEWER_VERSIONS: &str =
    "IBVERBS_1.0 { global: ibv_old; local: *; };\nIBVERBS_1.99 { global: ibv_new; } IBVERBS_1.0;\n";
/// The versions of a library that has a new function in an old version.
const GROWN_VERSIONS: &str = "IBVERBS_1.0 { global: ibv_old; ibv_new; local: *; };\n";

const OLD: &str = "#include <stdio.h>\nconst char *ibv_old(void);\nint main(void) { return puts(ibv_old()) < 0; }\n";
const NEW: &str = "#include <stdio.h>\nconst char *ibv_new(void);\nint main(void) { return puts(ibv_new()) < 0; }\n";
const PLAIN: &str = "int main(void) { return 0; }\n";

/// A folder with softhca, laid out as `cargo xtask dist` does, and a place for programs.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let place = Self { folder };
        for name in ["bin", "lib/softhca", "other", "grown"] {
            fs::create_dir_all(place.path(name)).expect("made");
        }
        fs::hard_link(env!("CARGO_BIN_EXE_softhca"), place.softhca()).expect("linked");
        place.library("lib/softhca", LIBRARY, VERSIONS);
        place.library("other", NEWER, NEWER_VERSIONS);
        place.library("grown", NEWER, GROWN_VERSIONS);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn softhca(&self) -> PathBuf {
        self.path("bin/softhca")
    }

    fn library(&self, folder: &str, text: &str, versions: &str) {
        let script = self.path(folder).join("versions");
        fs::write(&script, versions).expect("written");
        let script = format!("-Wl,--version-script={}", script.display());
        self.build(
            &format!("{folder}/libibverbs.so.1"),
            text,
            &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &script],
        );
    }

    fn build(&self, name: &str, text: &str, more: &[&str]) -> PathBuf {
        let (source, file) = (self.path("source.c"), self.path(name));
        fs::write(&source, text).expect("written");
        let output = Command::new("gcc").arg("-o").args([&file, &source]).args(more).output().expect("gcc runs");
        assert!(output.status.success(), "{name}: {output:?}");
        file
    }

    /// Builds a program that links to a library in `folder`.
    fn linked(&self, name: &str, text: &str, folder: &str, more: &[&str]) -> PathBuf {
        let library = self.path(folder).join("libibverbs.so.1").display().to_string();
        self.build(name, text, &[&[library.as_str()], more].concat())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.softhca());
        command.args(words).env("SOFTHCA_DIR", self.path("run"));
        for name in ["SOFTHCA_LOG", "SOFTHCA_FAULTS", "LD_LIBRARY_PATH", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command
    }

    fn softhca_says(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("it starts")
    }

    /// The doctor's findings about a program: the verdict, and each sentence with its advice.
    #[track_caller]
    fn doctor(&self, program: &Path) -> (bool, Vec<String>) {
        let output = self.softhca_says(&["doctor", "--json", "--", program.to_str().expect("plain")]);
        let answer: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let findings = answer["findings"].as_array().expect("findings").clone();
        let of_program: Vec<&Value> = findings.iter().filter(|finding| finding["what"] == "program").collect();
        let fails = of_program.iter().any(|finding| finding["verdict"] == "fail");
        assert_eq!(output.status.code(), Some(i32::from(fails)), "{output:?}");
        let told = |finding: &&Value| format!("{} → {}", finding["found"].as_str().expect("text"), finding["next"]);
        (fails, of_program.iter().map(told).collect())
    }

    /// What `softhca run` writes to standard error, and its exit code.
    fn run(&self, words: &[&str]) -> (String, i32) {
        let output = self.softhca_says(&[&["run", "--"], words].concat());
        (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code().expect("no signal"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.softhca_says(&["agent", "--stop"]);
    }
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

#[test]
fn a_program_that_fits_is_ok_and_runs() {
    let place = Place::new();
    let fits = place.linked("fits", OLD, "lib/softhca", &[]);
    let (fails, told) = place.doctor(&fits);
    assert!(!fails, "{told:?}");
    has(&told[0], &["fits", "loads", "lib/softhca/libibverbs.so.1"]);
    let output = place.softhca_says(&["run", "--", fits.to_str().expect("plain")]);
    assert!(output.status.success() && output.stdout == b"old\n" && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_version_that_nobody_has_is_named() {
    let place = Place::new();
    let newer = place.linked("newer", NEW, "other", &[]);
    let path = newer.to_str().expect("plain");
    let (fails, told) = place.doctor(&newer);
    assert!(fails && told.len() == 1, "{told:?}");
    let words = [path, "IBVERBS_1.99", "lib/softhca/libibverbs.so.1", "older rdma-core headers"];
    has(&told[0], &words);
    let (said, code) = place.run(&[path]);
    assert_eq!(code, 1, "{said}");
    has(said.lines().find(|line| line.starts_with("softhca: ")).unwrap_or(&said), &words);
}

#[test]
fn a_version_that_a_library_of_the_program_wants_is_named() {
    let place = Place::new();
    let text = "const char *ibv_new(void);\nconst char *middle(void) { return ibv_new(); }\n";
    place.linked("libmiddle.so", text, "other", &["-shared", "-fPIC", "-Wl,-soname,libmiddle.so"]);
    let main = "const char *middle(void);\nint main(void) { return !middle(); }\n";
    let folder = place.folder.path().display().to_string();
    let words = [
        format!("-L{folder}"),
        "-lmiddle".to_owned(),
        "-Wl,-rpath,$ORIGIN".to_owned(),
        "-Wl,--allow-shlib-undefined".to_owned(),
    ];
    let program = place.build("outer", main, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let (fails, told) = place.doctor(&program);
    assert!(fails, "{told:?}");
    has(&told[0], &["libmiddle.so needs version IBVERBS_1.99"]);
}

#[test]
fn a_function_that_nobody_has_is_named() {
    let place = Place::new();
    let grown = place.linked("grown-program", NEW, "grown", &[]);
    let (fails, told) = place.doctor(&grown);
    assert!(fails, "{told:?}");
    has(&told[0], &["ibv_new@IBVERBS_1.0"]);
}

#[test]
fn an_rpath_to_another_library_is_named_and_a_runpath_is_harmless() {
    let place = Place::new();
    let other = place.path("other").display().to_string();
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{other}");
    let program = place.linked("rpath", OLD, "other", &[&rpath]);
    let (fails, told) = place.doctor(&program);
    assert!(fails && told.len() == 1, "{told:?}");
    has(&told[0], &["RPATH", &other, "not softhca's", "patchelf --remove-rpath"]);
    let origin = place.linked("origin", OLD, "other", &["-Wl,--disable-new-dtags,-rpath,$ORIGIN/other"]);
    assert!(place.doctor(&origin).0);
    // The program behaves as the doctor says.
    let runpath = format!("-Wl,--enable-new-dtags,-rpath,{other}");
    let harmless = place.linked("runpath", OLD, "other", &[&runpath]);
    for (program, fails, says) in [(&program, true, "other\n"), (&origin, true, "other\n"), (&harmless, false, "old\n")]
    {
        let output = place.softhca_says(&["run", "--", program.to_str().expect("plain")]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), says, "{program:?}");
        assert_eq!(place.doctor(program).0, fails, "{program:?}");
    }
}

#[test]
fn a_static_program_is_told_before_it_runs() {
    let place = Place::new();
    for (name, option) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let program = place.build(name, PLAIN, &[option]);
        let path = program.to_str().expect("plain");
        let (fails, told) = place.doctor(&program);
        assert!(fails, "{told:?}");
        has(&told[0], &[path, "statically linked", "without -static"]);
        let (said, code) = place.run(&[path]);
        assert_eq!((code, said.lines().count()), (0, 1), "{said}");
        has(&said, &["softhca: ", path, "statically linked"]);
        let quiet = place.softhca_says(&["run", "--quiet", "--", path]);
        assert!(quiet.stderr.is_empty(), "{quiet:?}");
    }
    let section = "__attribute__((section(\".go.buildinfo\"), used)) static const char info[] = \"go\";\n";
    let go = place.build("go", &format!("{section}{PLAIN}"), &["-static"]);
    has(&place.doctor(&go).1[0], &["Go", "CGO_ENABLED=1"]);
}

#[test]
fn a_library_that_was_linked_in_is_told() {
    let place = Place::new();
    let text =
        "void *ibv_get_device_list(int *n) { return n; }\nint main(void) { int n; return !ibv_get_device_list(&n); }\n";
    let program = place.build("linked-in", text, &[]);
    let (fails, told) = place.doctor(&program);
    assert!(fails, "{told:?}");
    has(&told[0], &["libibverbs linked in"]);
}

#[test]
fn a_program_that_loads_the_library_itself_is_not_told() {
    let place = Place::new();
    let text = "#include <dlfcn.h>\n\
        void *ibv_get_device_list(int *n) { *n = 0; return dlopen(\"libibverbs.so.1\", RTLD_NOW); }\n\
        int main(void) { int n; return !ibv_get_device_list(&n); }\n";
    let program = place.build("loads", text, &["-ldl"]);
    let (fails, told) = place.doctor(&program);
    assert!(!fails, "{told:?}");
}

#[test]
fn a_missing_library_is_named() {
    let place = Place::new();
    place.build("libgone.so", "int gone(void) { return 0; }\n", &["-shared", "-fPIC", "-Wl,-soname,libgone.so.7"]);
    let library = place.path("libgone.so").display().to_string();
    let program = place.build("wants", "int gone(void);\nint main(void) { return gone(); }\n", &[&library]);
    let path = program.to_str().expect("plain");
    let (fails, told) = place.doctor(&program);
    assert!(fails, "{told:?}");
    has(&told[0], &[path, "libgone.so.7", "LD_LIBRARY_PATH"]);
    let (said, code) = place.run(&[path]);
    assert_eq!(code, 127, "{said}");
    has(&said, &["softhca: ", "libgone.so.7, which was not found"]);
}

#[test]
fn a_setuid_copy_is_told_where_it_gets_other_rights() {
    let place = Place::new();
    let program = place.build("setuid", PLAIN, &[]);
    let other = 65_534;
    if chown(&program, Some(other), None).is_err() {
        eprintln!("skipped: a file of another user needs root");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("changed");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    if mounts.contains("nosuid") && !place.doctor(&program).0 {
        eprintln!("skipped: setuid has no meaning on this file system");
        return;
    }
    let path = program.to_str().expect("plain");
    has(&place.doctor(&program).1[0], &[path, "is setuid", "LD_PRELOAD"]);
    has(&place.run(&[path]).0, &["softhca: ", path, "is setuid"]);
}

#[test]
fn a_program_for_another_machine_is_told() {
    let place = Place::new();
    let file = place.path("foreign");
    let mut header = [0_u8; 52];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    header[16..20].copy_from_slice(&[2, 0, 3, 0]);
    for (change, word) in [((4, 1), "32-bit"), ((18, 183), "32-bit"), ((4, 2), "AArch64"), ((18, 40), "ELF machine 40")]
    {
        header[change.0] = change.1;
        fs::write(&file, header).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("changed");
        let (fails, told) = place.doctor(&file);
        assert!(fails, "{told:?}");
        has(&told[0], &[file.to_str().expect("plain"), word, "x86-64"]);
    }
    let (said, code) = place.run(&[file.to_str().expect("plain")]);
    assert_eq!(code, 126, "{said}");
    has(&said, &["softhca: ", "ELF machine 40"]);
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let place = Place::new();
    let fixed = place.build("interpreter", PLAIN, &["-static"]);
    let script = place.path("script");
    fs::write(&script, format!("#!{}\n", fixed.display())).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("changed");
    let (fails, told) = place.doctor(&script);
    assert!(fails, "{told:?}");
    has(&told[0], &["interpreter is statically linked"]);
    fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    let (said, code) = place.run(&[script.to_str().expect("plain")]);
    assert_eq!(code, 127, "{said}");
    has(&said, &["softhca: ", script.to_str().expect("plain"), "/no/such/interpreter"]);
    fs::write(&script, "exit 0\n").expect("written");
    has(&place.doctor(&script).1[0], &["neither an ELF program nor a script"]);
    fs::write(&script, "#!/bin/sh\nexit 0\n").expect("written");
    assert!(!place.doctor(&script).0);
}

#[test]
fn a_program_that_is_not_there_is_told_with_its_name() {
    let place = Place::new();
    for (name, code, word) in [
        ("no-such-program", 127, "not found in PATH"),
        ("/no/such/program", 127, "No such file"),
        ("/tmp", 126, "is a directory"),
    ] {
        let (fails, told) = place.doctor(Path::new(name));
        assert!(fails, "{told:?}");
        has(&told[0], &[name, word]);
        let (said, ended) = place.run(&[name]);
        assert_eq!((ended, said.lines().count()), (code, 1), "{said}");
        has(&said, &["softhca: ", name, word]);
    }
}
