//! The structure of one package: files that import each other in a cycle, the widest struct, and
//! the number of long functions. Each figure has a limit that only goes down.
//!
//! What is only for tests does not count. The principal type is [`PackageFigures`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Fields, ImplItemFn, Item, ItemFn, ItemStruct, TraitItemFn};

use super::source::{Source, attributes, is_for_tests};

/// A function with more lines is long.
const LONG: usize = 60;

/// The figures of one package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PackageFigures {
    /// The files in the largest cycle of imports. A file does not import itself, so a cycle has at
    /// least two files. Empty: there is no cycle.
    pub(super) cycle: Vec<String>,
    /// The number of fields of the widest struct, and its name.
    pub(super) widest: (usize, String),
    /// Functions with more than [`LONG`] lines.
    pub(super) long: Vec<(usize, String)>,
    /// Each file's module, and the modules that it imports. Their names are those of
    /// [`cycle`](Self::cycle).
    pub(super) imports: BTreeMap<String, BTreeSet<String>>,
}

/// The path of a module: the names from the crate's root.
type Names = Vec<String>;

impl PackageFigures {
    /// Measures the sources of a package: the path below `src` and the syntax of each file.
    pub(super) fn of(files: &[(PathBuf, Source)]) -> Self {
        let mut modules: BTreeMap<Names, &Source> = BTreeMap::new();
        let mut figures = Self::default();
        let mut tests = BTreeSet::new();
        for (path, source) in files {
            let module = module_of(path);
            let only_tests = source.items().iter().filter(|item| is_for_tests(attributes(item)));
            tests.extend(only_tests.filter_map(|item| match item {
                Item::Mod(child) => Some([module.clone(), vec![child.ident.to_string()]].concat()),
                _ => None,
            }));
            modules.insert(module, source);
        }
        let is_test = |module: &Names| (1..=module.len()).any(|len| tests.contains(&module[..len]));
        modules.retain(|module, _| !is_test(module));
        for (module, source) in &modules {
            let mut counter = Counter { figures: &mut figures, module: module.join("::") };
            source.items().iter().for_each(|item| counter.visit_item(item));
        }
        let known: BTreeSet<&Names> = modules.keys().collect();
        let imports = |module: &Names, source: &Source| -> BTreeSet<Names> {
            // A macro may name its test's module behind a `cfg`.
            let is_for_tests = |path: &Names| path.iter().any(|name| name == "tests");
            let paths = source.paths_without_tests().into_iter().map(|(_, path)| path);
            let targets = paths.filter(|path| !is_for_tests(path)).filter_map(|path| target(module, &path, &known));
            targets.filter(|found| found != module).collect()
        };
        let edges = modules.iter().map(|(module, source)| (module, imports(module, source))).collect();
        figures.cycle = largest_cycle(&edges).iter().map(|module| module.join("::")).collect();
        figures.imports = edges
            .into_iter()
            .map(|(from, to)| (from.join("::"), to.iter().map(|module| module.join("::")).collect()))
            .collect();
        figures
    }
}

/// Finds wide structs and long functions.
struct Counter<'f> {
    figures: &'f mut PackageFigures,
    module: String,
}

impl Counter<'_> {
    fn function(&mut self, name: &syn::Ident, first: usize, last: usize) {
        let length = last + 1 - first;
        if length > LONG {
            self.figures.long.push((length, format!("{}::{name}", self.module)));
        }
    }
}

impl<'a> Visit<'a> for Counter<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        if let Fields::Named(fields) = &item.fields
            && fields.named.len() > self.figures.widest.0
        {
            self.figures.widest = (fields.named.len(), format!("{}::{}", self.module, item.ident));
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        let last = item.block.brace_token.span.close().start().line;
        self.function(&item.sig.ident, item.sig.fn_token.span.start().line, last);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        let last = item.block.brace_token.span.close().start().line;
        self.function(&item.sig.ident, item.sig.fn_token.span.start().line, last);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a TraitItemFn) {
        if let Some(block) = &item.default {
            let last = block.brace_token.span.close().start().line;
            self.function(&item.sig.ident, item.sig.fn_token.span.start().line, last);
        }
        visit::visit_trait_item_fn(self, item);
    }
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

    fn figures(files: &[(&str, &str)]) -> PackageFigures {
        let parsed = |text: &str| Source::read(text).expect("Rust");
        PackageFigures::of(&files.iter().map(|(path, text)| (PathBuf::from(path), parsed(text))).collect::<Vec<_>>())
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
