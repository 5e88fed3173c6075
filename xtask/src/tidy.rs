//! `cargo xtask tidy`: checks the rules that no compiler checks. Each rule has a sentence for the
//! person who breaks it.
//!
//! The table of floors and the list of modules with `unsafe` exist only here. ARCHITECTURE.md
//! explains them. [`source`] reads source text. [`structure`] measures how the files of a package
//! depend on each other. [`module_floors`] has the floors inside the engine. The principal function
//! is [`run`].

mod module_floors;
mod source;
mod structure;

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::{Package, Workspace};
use source::Source;
use structure::PackageFigures;

/// The floor of each crate. A crate imports only from lower floors.
const FLOORS: &[(&str, u8)] = &[
    ("softhca-wire", 0),
    ("softhca-shm", 0),
    ("softhca-udp", 0),
    ("softhca-interpose", 0),
    ("softhca-tun", 0),
    ("softhca-plot", 0),
    ("softhca-abi", 1),
    ("softhca-protocol", 1),
    ("softhca-mad", 1),
    ("softhca-rsocket", 1),
    ("softhca-iwarp", 1),
    ("softhca-ipoib", 1),
    ("softhca-engine", 2),
    ("softhca-capture", 2),
    ("softhca-subnet", 2),
    ("softhca-sm", 2),
    ("softhca-umad", 2),
    ("softhca-agent", 3),
    ("softhca-cm", 3),
    ("softhca", 4),
    ("softhca-bench", 5),
    ("softhca-fabric", 5),
    ("libibverbs", 5),
    ("librdmacm", 5),
    ("libibumad", 5),
    ("softhca-rspreload", 5),
    ("softhca-preload", 5),
    ("softhca-shared-memory", 5),
    ("softhca-cli", 6),
];

/// Packages that are not shipped. No shipped package may import them.
const TOOLS: &[&str] = &["softhca-suite", "softhca-harness", "softhca-fuzz", "xtask"];

/// Where `unsafe` is allowed: a package and path prefixes in its `src`. An empty prefix means the
/// whole package.
const UNSAFE: &[(&str, &[&str])] = &[
    ("softhca-wire", &["icrc/fold"]),
    ("softhca-shm", &[""]),
    ("softhca-udp", &["sys"]),
    ("softhca-tun", &["sys"]),
    ("softhca-engine", &["access", "lock", "tsc", "usermem"]),
    ("softhca", &["memory"]),
    ("libibverbs", &[""]),
    ("librdmacm", &[""]),
    ("libibumad", &[""]),
    ("softhca-interpose", &[""]),
    ("softhca-rspreload", &[""]),
    ("softhca-preload", &[""]),
    (
        "softhca-shared-memory",
        &["early", "entry", "forks", "heap", "lock", "next", "owner", "pages", "stack", "surroundings"],
    ),
];

/// Packages without clock, socket, thread or random source. Time and randomness are arguments.
const PURE: &[&str] = &[
    "softhca-wire",
    "softhca-abi",
    "softhca-protocol",
    "softhca-mad",
    "softhca-rsocket",
    "softhca-subnet",
    "softhca-sm",
    "softhca-iwarp",
    "softhca-ipoib",
];

/// Paths that a pure package may not mention.
const IMPURE: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "std::thread",
    "TcpStream",
    "UdpSocket",
    "TcpListener",
    "std::os::unix::net",
    "std::process",
];

/// Crates that a pure package may not depend on.
const IMPURE_CRATES: &[&str] = &["rustix", "libc", "rand", "getrandom", "tokio", "netlink-sys"];

const LONGEST_FILE: usize = 600;

/// The limits for a package without a line in [`CEILINGS`]: files in one import cycle, fields of a
/// struct, long functions.
const USUAL: [usize; 3] = [4, 20, 0];

/// Packages with higher limits, which were counted once. These numbers only go down.
const CEILINGS: &[(&str, [usize; 3])] = &[
    ("softhca-wire", [4, 26, 0]),
    ("softhca-protocol", [4, 21, 0]),
    ("softhca-engine", [6, 20, 5]),
    ("softhca-cli", [4, 24, 0]),
    ("libibverbs", [4, 31, 0]),
];

/// Checks all rules and reports everything that is wrong.
pub(crate) fn run(workspace: &Workspace, shows_figures: bool) -> Result<(), String> {
    let mut wrong = Vec::new();
    let mut files = 0;
    for package in workspace.packages() {
        imports(package, &mut wrong);
        structure(package, shows_figures, &mut wrong)?;
        for path in rust_files(package.folder()) {
            files += 1;
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let shown = path.strip_prefix(workspace.root()).unwrap_or(&path).display().to_string();
            let inside = path.strip_prefix(package.folder()).unwrap_or(&path);
            match Source::read(&text) {
                Ok(source) => file(package, &shown, inside, &source, &mut wrong),
                Err(error) => wrong.push(format!("{shown}: {error}")),
            }
        }
    }
    configuration(workspace, &mut wrong);
    if wrong.is_empty() {
        println!("{} packages, {files} files, all tidy", workspace.packages().len());
        Ok(())
    } else {
        Err(format!("{}\n{} things are not tidy", wrong.join("\n"), wrong.len()))
    }
}

/// Checks that imports go downward.
fn imports(package: &Package, wrong: &mut Vec<String>) {
    let name = package.name.as_str();
    if TOOLS.contains(&name) {
        return;
    }
    let Some(own) = floor(name) else {
        wrong.push(format!("{name}: not in the table of floors (xtask/src/tidy.rs, ARCHITECTURE.md)"));
        return;
    };
    for dependency in package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev")) {
        let other = dependency.name.as_str();
        if TOOLS.contains(&other) {
            wrong.push(format!("{name} imports {other}, which is not shipped"));
        }
        if floor(other).is_some_and(|other| other >= own) {
            wrong.push(format!("{name} (floor {own}) imports {other}, which is not on a lower floor"));
        }
        if PURE.contains(&name) && IMPURE_CRATES.contains(&other) {
            wrong.push(format!("{name} imports {other}: it has no clock, socket, thread or random source"));
        }
    }
}

/// Checks that a package's structure does not get worse.
fn structure(package: &Package, shows: bool, wrong: &mut Vec<String>) -> Result<(), String> {
    let name = package.name.as_str();
    let source = package.folder().join("src");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let parsed = Source::read(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((path.strip_prefix(&source).unwrap_or(&path).to_owned(), parsed))
    };
    let files = rust_files(&source).into_iter().map(read).collect::<Result<Vec<_>, String>>()?;
    let PackageFigures { cycle, widest, long, imports } = PackageFigures::of(&files);
    if shows {
        let ([cycle, long], (fields, widest)) = ([cycle.len(), long.len()], &widest);
        println!(
            "{name}: {cycle} files in the largest import cycle, {fields} fields in {widest}, {long} long functions"
        );
    }
    if TOOLS.contains(&name) {
        return Ok(());
    }
    if name == "softhca-engine" {
        wrong.extend(
            module_floors::check(module_floors::ENGINE, &imports).into_iter().map(|what| format!("{name}: {what}")),
        );
    }
    let [most_files, most_fields, most_long] =
        CEILINGS.iter().find(|(room, _)| *room == name).map_or(USUAL, |(_, most)| *most);
    let mut check = |count: usize, most: usize, what: String| {
        if count > most {
            wrong.push(format!("{name}: {what}: {count}, and {most} is the most (xtask/src/tidy.rs)"));
        }
    };
    check(cycle.len(), most_files, format!("files in one import cycle: {}", cycle.join(", ")));
    check(widest.0, most_fields, format!("fields of {}", widest.1));
    let long: Vec<String> = long.into_iter().map(|(lines, name)| format!("{name} ({lines} lines)")).collect();
    check(long.len(), most_long, format!("long functions: {}", long.join(", ")));
    Ok(())
}

/// Checks the rules for each file.
fn file(package: &Package, shown: &str, inside: &Path, source: &Source, wrong: &mut Vec<String>) {
    let name = package.name.as_str();
    if !source.opens_with_paragraph() {
        wrong.push(format!(
            "{shown}: does not open with a //! paragraph (what it is, what it is not, its principal type)"
        ));
    }
    if source.lines() > LONGEST_FILE {
        wrong.push(format!("{shown}: {} lines; split it at {LONGEST_FILE}", source.lines()));
    }
    let Ok(module) = inside.strip_prefix("src") else {
        return;
    };
    let place = module.to_string_lossy();
    let allowed = UNSAFE.iter().find(|(owner, _)| *owner == name).map_or(&[][..], |(_, prefixes)| prefixes);
    if !allowed.iter().any(|prefix| place.starts_with(prefix)) {
        for line in source.unsafe_lines() {
            wrong.push(format!("{shown}:{line}: unsafe outside the modules that may have it (xtask/src/tidy.rs)"));
        }
    }
    let root = place == "lib.rs" || place == "main.rs";
    if root && allowed.is_empty() && !source.forbids_unsafe() {
        wrong.push(format!("{shown}: #![forbid(unsafe_code)] is missing"));
    }
    if PURE.contains(&name) && !place.ends_with("tests.rs") {
        for (line, path) in source.paths() {
            let is_there = |word: &&&str| {
                let names: Vec<&str> = word.split("::").collect();
                path.windows(names.len()).any(|part| part.iter().eq(&names))
            };
            if let Some(word) = IMPURE.iter().find(is_there) {
                wrong.push(format!("{shown}:{line}: names {word}; time and chance are arguments here"));
            }
        }
    }
}

/// Checks that every key of the example configuration is explained.
fn configuration(workspace: &Workspace, wrong: &mut Vec<String>) {
    const EXAMPLE: &str = "crates/agent/config.example.toml";
    const PAGE: &str = "docs/configuration.md";
    let read = |name: &str| fs::read_to_string(workspace.root().join(name)).unwrap_or_default();
    let page = read(PAGE);
    for line in read(EXAMPLE).lines() {
        let Some((key, _)) = line.trim_start_matches(['#', ' ']).split_once(" = ") else { continue };
        if !page.contains(&format!("`{key}`")) {
            wrong.push(format!("{PAGE}: does not explain `{key}` of {EXAMPLE}"));
        }
    }
}

fn floor(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(room, _)| *room == name).map(|(_, floor)| *floor)
}

/// Every Rust file below a package, without build output.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != "target" {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
