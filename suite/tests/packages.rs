//! Tests the packages that users install: looks at each file of the packages that `cargo xtask
//! package` makes from the folder under test, and runs the recipes of docs/install.md and
//! action.yml with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::package::{Packages, block, project};
use harness::{Room, User};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files that are executed or loaded.
const PROGRAMS: [&str; 6] = [
    "bin/softhca",
    "lib/softhca/libibverbs.so.1.18.0",
    "lib/softhca/librdmacm.so.1.5.0",
    "lib/softhca/libsofthca_preload.so",
    "lib/softhca/libsofthca_shared.so",
    "lib/softhca/rsocket/librspreload.so",
];

const COMPLETIONS: [&str; 3] =
    ["bash-completion/completions/softhca", "zsh/site-functions/_softhca", "fish/vendor_completions.d/softhca.fish"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Mode, owner and path of each entry, as tar lists them.
fn entries(listing: &str) -> BTreeMap<String, (String, String)> {
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[5].to_owned(), (words[0].to_owned(), words[1].to_owned()))
    };
    listing.lines().map(entry).collect()
}

/// Checks that root owns everything, that only the program is executable, and that no file is
/// set-uid or set-gid.
fn check_modes(entries: &BTreeMap<String, (String, String)>) {
    for (path, (mode, owner)) in entries {
        assert!(matches!(owner.as_str(), "0/0" | "root/root"), "{path}: {owner}");
        let expected = match mode.as_bytes()[0] {
            b'd' => "drwxr-xr-x",
            b'l' => "lrwxrwxrwx",
            _ if path.ends_with("bin/softhca") => "-rwxr-xr-x",
            _ => "-rw-r--r--",
        };
        assert_eq!(mode, expected, "{path}");
    }
}

/// The command and all its subcommands, as their help lists them, by the names of their man pages.
fn commands(program: &Path, words: &[&str]) -> Vec<String> {
    let help = output(Command::new(program).args(words).arg("--help"));
    let mut found = vec![["softhca"].iter().chain(words).copied().collect::<Vec<_>>().join("-")];
    let list = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    for line in list.lines().take_while(|line| line.starts_with("  ")) {
        let name = line.split_whitespace().next().expect("a name");
        // The continuation of a longer description is further to the right.
        if !line.starts_with("   ") && name != "help" {
            found.extend(commands(program, &[words, &[name]].concat()));
        }
    }
    found
}

fn check_tarball(packages: &Packages, unpacked: &Path) {
    let top = format!("softhca-{VERSION}-x86_64-linux");
    let list = |part| entries(&output(Command::new("tar").arg("-tvzf").arg(packages.tarball(part))));
    let listed = list("");
    check_modes(&listed);
    check_modes(&list("-debug"));
    assert!(listed.keys().all(|path| path.starts_with(&format!("{top}/"))), "{listed:?}");
    let papers = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "docs/install.md", "docs/why.md"];
    let completions = COMPLETIONS.map(|path| format!("share/{path}"));
    let expected = PROGRAMS.iter().chain(&papers).copied().chain(completions.iter().map(String::as_str));
    for path in expected {
        assert!(listed.contains_key(&format!("{top}/{path}")), "{path} is missing: {listed:?}");
    }
    for part in ["", "-debug"] {
        output(Command::new("tar").arg("-xzf").arg(packages.tarball(part)).arg("-C").arg(unpacked));
    }
    for program in PROGRAMS {
        check_symbols(&unpacked.join(&top).join(program), &unpacked.join(format!("{top}-debug")));
    }
    let program = unpacked.join(&top).join("bin/softhca");
    let pages = fs::read_dir(unpacked.join(&top).join("share/man/man1")).expect("man pages");
    let mut pages: Vec<String> =
        pages.map(|page| page.expect("listed").file_name().into_string().expect("text")).collect();
    pages.sort();
    let commands = commands(&program, &[]);
    assert!(commands.len() > 8 && commands.contains(&"softhca-fault-add".to_owned()), "{commands:?}");
    let mut expected: Vec<String> = commands.iter().map(|name| format!("{name}.1")).collect();
    expected.sort();
    assert_eq!(pages, expected);
}

/// Checks that a program is stripped, and that its symbols are where debuggers look for its build
/// id.
fn check_symbols(program: &Path, debug: &Path) {
    let read = |file: &Path| output(Command::new("readelf").args(["--sections", "--notes"]).arg(file));
    let told = read(program);
    let id = told.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id").to_owned();
    assert!(told.contains(".gnu_debuglink") && !told.contains(".debug_info") && !told.contains(".symtab"), "{told}");
    let symbols = debug.join(".build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
    let told = read(&symbols);
    assert!(told.contains(".debug_info") && told.contains(&format!("Build ID: {id}")), "{told}");
}

fn check_deb(packages: &Packages) {
    let deb = packages.deb();
    let field = |name| output(Command::new("dpkg-deb").arg("--field").arg(&deb).arg(name)).trim().to_owned();
    let fields = ["Package", "Version", "Architecture", "Maintainer", "Provides", "Conflicts", "Replaces"].map(field);
    let expected = ["softhca", &format!("{VERSION}-0softhca1"), "amd64", "A Maintainer <a@example.org>", "", "", ""];
    assert_eq!(fields, expected);
    let depends = field("Depends");
    assert!(depends.starts_with("libc6 (>= 2.") && depends.ends_with(", libgcc-s1"), "{depends}");
    let listed = entries(&output(Command::new("dpkg-deb").arg("--contents").arg(&deb)));
    check_modes(&listed);
    // The package has no file in ld.so.conf.d and no library in the system's library folder.
    for (path, (mode, _)) in &listed {
        let places = ["./usr/bin/softhca", "./usr/lib/softhca/", "./usr/share/"];
        assert!(mode.starts_with('d') || places.iter().any(|place| path.starts_with(place)), "{path}");
    }
    for path in PROGRAMS.map(|path| format!("./usr/{path}")) {
        assert!(listed.contains_key(&path), "{path}: {listed:?}");
    }
    let share =
        ["doc/softhca/copyright", "doc/softhca/changelog.gz", "man/man1/softhca.1.gz", "man/man1/softhca-run.1.gz"];
    for path in share.iter().chain(&["zsh/vendor-completions/_softhca"]) {
        assert!(listed.contains_key(&format!("./usr/share/{path}")), "{path}: {listed:?}");
    }
    let control =
        output(Command::new("sh").args(["-c", "dpkg-deb --ctrl-tarfile \"$1\" | tar -t | sort", "sh"]).arg(&deb));
    assert_eq!(control, "./\n./control\n./md5sums\n", "no script runs when it is installed");
}

#[test]
fn packages_hold_what_they_promise_and_are_reproducible() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, unpacked] = ["first", "second", "unpacked"].map(|name| folder.path().join(name));
    let [first, second] =
        [(first, "022"), (second, "077")].map(|(out, mask)| Packages::make(&out, mask).expect("made"));
    let each = |packages: &Packages| [packages.tarball(""), packages.tarball("-debug"), packages.deb()];
    for (one, other) in each(&first).iter().zip(&each(&second)) {
        output(Command::new("cmp").args([one, other]));
    }
    fs::create_dir(&unpacked).expect("made");
    check_tarball(&first, &unpacked);
    check_deb(&first);
}

#[test]
fn the_recipes_of_the_install_page_and_the_action_run_somebody_elses_tests() {
    let room = Room::of(User::Nobody).expect("a room");
    let folder = project(&room).expect("a project");
    let packages = Packages::make(&folder, "022").expect("packages");
    let address = format!("file://{}", packages.tarball("").display());
    let recipe = block("docs/install.md", "```sh\n").expect("a shell block");
    let script = format!("cd {}\nSOFTHCA={address}\n{recipe}", folder.display());
    // The second time the folder exists, as if from a cache, and nothing is downloaded.
    for script in [script.clone(), script.replace(&address, "file:///nowhere")] {
        let outcome = room.finish(room.command("sh", ["-euc", &script])).expect("it ends").expect_success();
        assert!(outcome.output.contains("100% tests passed, 0 tests failed out of 1"), "{}", outcome.told());
    }
    action(&room, &folder, &address);
}

/// Runs the action's install step, word for word.
fn action(room: &Room, folder: &Path, address: &str) {
    let text = fs::read_to_string(root().join("action.yml")).expect("the action");
    let step = text.split("- id: install").nth(1).and_then(|rest| rest.split("run: |\n").nth(1)).expect("the step");
    let run = |place: &str, package: &str, digest: &str| {
        let mut command = room.command("bash", ["-euc", step]);
        let place = folder.join(place);
        command.envs([("PACKAGE", package), ("SHA256", digest), ("FOLDER", &place.display().to_string())]);
        command.env("GITHUB_PATH", folder.join("github-path"));
        room.finish(command).expect("it ends")
    };
    let file = address.trim_start_matches("file://");
    let digest = output(Command::new("sha256sum").arg(file)).split_whitespace().next().expect("a digest").to_owned();
    for (place, package, digest) in [("a", address, ""), ("b", file, digest.as_str()), ("a", "file:///nowhere", "")] {
        let outcome = run(place, package, digest).expect_success();
        assert!(outcome.output.contains(VERSION), "{}", outcome.told());
    }
    let path = fs::read_to_string(folder.join("github-path")).expect("written");
    assert_eq!(path.lines().next(), Some(folder.join("a/bin").display().to_string().as_str()));
    assert!(!run("c", address, &"0".repeat(64)).succeeded(), "another digest is refused");
    assert!(!folder.join("c").exists(), "and nothing of it is unpacked");
}
