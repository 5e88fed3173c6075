//! The structure of one package: files that import each other in a cycle, the widest struct, and
//! the number of long functions. Each figure has a limit that only goes down.
//!
//! It reads `use` trees and paths that begin with `crate`, `self` or `super`, and counts fields and
//! lines. It is not a parser: it ignores code that is only for tests, and does not see the output
//! of macros. The principal type is [`Figures`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::source::Source;

/// A function with more lines is long.
const LONG: usize = 60;

/// The figures of one package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// The files in the largest cycle of imports. A file does not import itself, so a cycle has at
    /// least two files. Empty: there is no cycle.
    pub(super) cycle: Vec<String>,
    /// The number of fields of the widest struct, and its name.
    pub(super) widest: (usize, String),
    /// Functions with more than [`LONG`] lines.
    pub(super) long: Vec<(usize, String)>,
}

/// The path of a module: the names from the crate's root.
type Names = Vec<String>;

impl Figures {
    /// Measures the sources of a package: the path below `src` and the text of each file.
    pub(super) fn of(files: &[(PathBuf, String)]) -> Self {
        let mut modules: BTreeMap<Names, Vec<String>> = BTreeMap::new();
        let mut figures = Self::default();
        let mut tests = BTreeSet::new();
        for (path, text) in files {
            let (own, only_tests) = Source::read(text).without_tests();
            let module = module_of(path);
            tests.extend(only_tests.into_iter().map(|name| [module.clone(), vec![name]].concat()));
            modules.insert(module, own);
        }
        let is_test = |module: &Names| (1..=module.len()).any(|len| tests.contains(&module[..len]));
        modules.retain(|module, _| !is_test(module));
        for (module, lines) in &modules {
            figures.count(&module.join("::"), lines);
        }
        let known: BTreeSet<&Names> = modules.keys().collect();
        let edges = modules.iter().map(|(module, lines)| (module, imports(module, lines, &known))).collect();
        figures.cycle = largest_cycle(&edges).into_iter().map(|module| module.join("::")).collect();
        figures
    }

    /// Finds wide structs and long functions.
    fn count(&mut self, module: &str, lines: &[String]) {
        for (at, line) in lines.iter().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let named = |keyword: &str| {
                let at = words.iter().position(|word| *word == keyword)?;
                let is_item = words[..at].iter().all(|word| word.starts_with("pub") || QUALIFIERS.contains(word));
                let name = words.get(at + 1)?.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
                is_item.then(|| format!("{module}::{name}"))
            };
            if let Some(name) = named("struct") {
                let fields = body(&lines[at..]).iter().filter(|line| is_field(line)).count();
                if fields > self.widest.0 {
                    self.widest = (fields, name);
                }
            } else if let Some(name) = named("fn") {
                let length = body(&lines[at..]).len();
                if length > LONG {
                    self.long.push((length, name));
                }
            }
        }
    }
}

/// Words that may come before `fn` or `struct`.
const QUALIFIERS: [&str; 6] = ["in", "const", "async", "unsafe", "extern", "super)"];

/// The lines of an item up to its closing brace. For an item without braces, up to the semicolon.
fn body(lines: &[String]) -> &[String] {
    let mut depth = 0_i32;
    for (at, line) in lines.iter().enumerate() {
        for letter in line.chars() {
            depth += match letter {
                '{' | '(' | '[' => 1,
                '}' | ')' | ']' => -1,
                _ => 0,
            };
            if depth == 0 && matches!(letter, '}' | ';') {
                return &lines[..=at];
            }
        }
    }
    lines
}

/// Whether a line of a struct is a field, in rustfmt's layout.
fn is_field(line: &str) -> bool {
    let Some(line) = line.strip_prefix("    ").filter(|line| !line.starts_with(' ')) else { return false };
    let name = line.split(": ").next().unwrap_or_default();
    let name = name.rsplit(' ').next().unwrap_or_default();
    line.contains(": ") && !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '#')
}

/// The module of a file. `a/b.rs` and `a/b/mod.rs` are the module a::b; `lib.rs` and `main.rs` are
/// the root.
fn module_of(path: &Path) -> Names {
    let mut names: Names = path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

/// The other files of the package that a file mentions.
fn imports(module: &Names, lines: &[String], known: &BTreeSet<&Names>) -> BTreeSet<Names> {
    let text = lines.join("\n");
    let mut paths = Vec::new();
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some(at) = word_at(rest, "use") {
        let end = rest[at..].find(';').map_or(rest.len(), |len| at + len);
        spread(&[], &rest[at + 3..end], &mut paths);
        code += &rest[..at];
        rest = &rest[end..];
    }
    code += rest;
    let separated = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
    paths.extend(code.split(separated).filter(|word| word.contains("::")).map(names));
    paths.iter().filter_map(|path| target(module, path, known)).filter(|found| found != module).collect()
}

/// The position of a word that is not part of a longer word.
fn word_at(text: &str, word: &str) -> Option<usize> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut places = text.match_indices(word).map(|(at, _)| at);
    places.find(|at| !part(text[..*at].chars().next_back()) && !part(text[at + word.len()..].chars().next()))
}

fn names(path: &str) -> Names {
    path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// Parses a tree of `use`.
fn spread(before: &[String], tree: &str, paths: &mut Vec<Names>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        paths.push([before, &names(path)].concat());
        return;
    };
    let before = [before, &names(&tree[..open])].concat();
    let inside = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0_i32, 0);
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inside[start..at].trim().is_empty() {
                    spread(&before, &inside[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The file that a path leads to: the deepest module with a file. `None` for other crates.
fn target(module: &Names, path: &Names, known: &BTreeSet<&Names>) -> Option<Names> {
    let (mut at, mut rest) = (module.clone(), path.as_slice());
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        child => {
            if !known.contains(&[module.as_slice(), &[child.to_owned()]].concat()) {
                return None;
            }
        }
    }
    for name in rest {
        at.push(name.clone());
        if !known.contains(&at) {
            at.pop();
            break;
        }
    }
    known.contains(&at).then_some(at)
}

/// The largest set of files in which each file leads to every other file.
fn largest_cycle(edges: &BTreeMap<&Names, BTreeSet<Names>>) -> BTreeSet<Names> {
    let reached: BTreeMap<&Names, BTreeSet<Names>> = edges
        .keys()
        .map(|from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![(*from).clone()]);
            while let Some(module) = open.pop() {
                let next = edges.get(&module).into_iter().flatten();
                open.extend(next.filter(|next| seen.insert((*next).clone())).cloned());
            }
            (*from, seen)
        })
        .collect();
    let circle = |from: &Names| -> BTreeSet<Names> {
        let back = |to: &&Names| reached.get(*to).is_some_and(|seen| seen.contains(from));
        reached.get(from).into_iter().flatten().filter(back).cloned().collect()
    };
    edges.keys().map(|from| circle(from)).max_by_key(BTreeSet::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(files: &[(&str, &str)]) -> Figures {
        Figures::of(&files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_is_found_through_trees_supers_and_inline_paths() {
        let cycle = |c: &str| {
            figures(&[
                ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
                ("a.rs", "use crate::{b::{Thing, Other as O}, std};\n"),
                ("b.rs", "mod deep;\nfn f() { deep::g() }\n"),
                ("b/deep.rs", "pub fn g() { super::super::c::h() }\n"),
                ("c.rs", c),
                ("d.rs", "use crate::a::X;\n"),
            ])
            .cycle
        };
        assert_eq!(cycle("pub fn h() -> crate::a::Y { todo() }\n"), ["a", "b", "b::deep", "c"]);
        assert!(cycle("//! crate::a\npub fn h() { \"crate::a::Y\"; }\n").is_empty(), "words are no imports");
        assert!(cycle("#[cfg(test)]\nmod tests {\n    use crate::a::Y;\n}\n").is_empty(), "nor are those of tests");
    }

    #[test]
    fn files_of_tests_are_left_out() {
        let files =
            [("a.rs", "#[cfg(test)]\nmod tests;\nuse crate::b::B;\n"), ("a/tests.rs", "use super::*;\n"), ("b.rs", "")];
        assert!(figures(&files).cycle.is_empty());
        let files = [("a.rs", "mod part;\nuse part::P;\n"), ("a/part.rs", "use super::*;\n"), ("b.rs", "")];
        assert_eq!(figures(&files).cycle, ["a", "a::part"]);
    }

    #[test]
    fn fields_and_lines_are_counted() {
        let long =
            format!("pub(crate) fn long(\n    a: u32,\n) {{\n{}}}\nfn short() {{}}\n", "    step();\n".repeat(60));
        let text = format!(
            "struct Small(u8);\npub struct Wide<T> {{\n    /// Words: of it.\n    pub a: T,\n    pub(crate) b: fn(u8) -> u8,\n    c: u8,\n}}\n{long}"
        );
        let found = figures(&[("m.rs", &text)]);
        assert_eq!(found.widest, (3, "m::Wide".to_owned()));
        assert_eq!(found.long, [(64, "m::long".to_owned())]);
    }
}
