//! One Rust file for the tidy rules: its text, and its syntax tree. The principal type is
//! [`Source`].

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemUse, UseTree};

/// A Rust file.
pub(super) struct Source {
    text: String,
    file: File,
}

/// A path that code mentions, and its line, counted from 1.
pub(super) type Mention = (usize, Vec<String>);

impl Source {
    /// Parses a file's text.
    ///
    /// # Errors
    /// The text is not Rust.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let file = syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))?;
        Ok(Self { text: text.to_owned(), file })
    }

    /// Whether the first line is a `//!` comment with words in it.
    pub(super) fn opens_with_paragraph(&self) -> bool {
        self.text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("//!"))
            .is_some_and(|words| words.split_whitespace().count() > 1)
    }

    /// The number of lines.
    pub(super) fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// Whether the crate root forbids unsafe code.
    pub(super) fn forbids_unsafe(&self) -> bool {
        self.text.contains("#![forbid(unsafe_code)]")
    }

    /// The lines, counted from 1, whose code contains `unsafe`.
    pub(super) fn unsafe_lines(&self) -> Vec<usize> {
        let mut lines = Vec::new();
        each_token(self.file.to_token_stream(), &mut |token| {
            if let TokenTree::Ident(word) = token
                && word == "unsafe"
            {
                lines.push(word.span().start().line);
            }
        });
        lines.dedup();
        lines
    }

    /// The items of the file, with those of inline modules, without what is only for tests.
    pub(super) fn items(&self) -> &[Item] {
        &self.file.items
    }

    /// All paths that code mentions, also in macros.
    pub(super) fn paths(&self) -> Vec<Mention> {
        let mut paths = Paths(Vec::new());
        paths.visit_file(&self.file);
        paths.0
    }

    /// The paths that code mentions if it is not only for tests.
    pub(super) fn paths_without_tests(&self) -> Vec<Mention> {
        let mut paths = WithoutTests(Paths(Vec::new()));
        paths.visit_file(&self.file);
        paths.0.0
    }
}

/// Whether an item with these attributes is only for tests.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.meta.to_token_stream().to_string().replace(' ', "");
        text.starts_with("cfg(test") || text.starts_with("cfg(all(test")
    })
}

/// The attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Collects paths.
struct Paths(Vec<Mention>);

impl Visit<'_> for Paths {
    fn visit_item_use(&mut self, item: &ItemUse) {
        let line = item.use_token.span.start().line;
        spread(&[], &item.tree, &mut |path| self.0.push((line, path)));
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(path.segments.first().map_or(0, |first| first.ident.span().start().line), names);
        visit::visit_path(self, path);
    }

    /// `pub(crate)` and its like: who may use the item, which is no use of anything.
    fn visit_vis_restricted(&mut self, _: &syn::VisRestricted) {}

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}

impl Paths {
    /// Adds a path of code, unless it is a single name.
    fn add(&mut self, line: usize, path: Vec<String>) {
        if path.len() > 1 {
            self.0.push((line, path));
        }
    }

    /// The paths in what a macro gets, which need not be Rust.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons) = (Vec::<String>::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(word) if path.is_empty() || colons == 2 => {
                    if path.is_empty() {
                        line = word.span().start().line;
                    }
                    path.push(word.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(ref punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                _ => {}
            }
            self.add(line, std::mem::take(&mut path));
            colons = 0;
        }
        self.add(line, path);
    }
}

/// Collects paths outside of tests.
struct WithoutTests(Paths);

impl<'a> Visit<'a> for WithoutTests {
    fn visit_item(&mut self, item: &'a Item) {
        match item {
            _ if is_for_tests(attributes(item)) => {}
            Item::Mod(module) => visit::visit_item_mod(self, module),
            item => self.0.visit_item(item),
        }
    }
}

/// Calls `found` with each path of a tree of `use`.
fn spread(before: &[String], tree: &UseTree, found: &mut impl FnMut(Vec<String>)) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => spread(&with(&path.ident), &path.tree, found),
        UseTree::Name(name) => found(with(&name.ident)),
        UseTree::Rename(name) => found(with(&name.ident)),
        UseTree::Glob(_) => found(before.to_vec()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| spread(before, tree, found)),
    }
}

/// Calls `act` with each token, also within brackets.
fn each_token(tokens: TokenStream, act: &mut impl FnMut(&TokenTree)) {
    for token in tokens {
        act(&token);
        if let TokenTree::Group(group) = token {
            each_token(group.stream(), act);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    fn source(text: &str) -> Source {
        Source::read(text).expect("Rust")
    }

    #[test]
    fn unsafe_in_words_comments_and_strings_is_not_code() {
        let text = "//! A file of words.\n#![forbid(unsafe_code)]\n// unsafe\nfn f() {\nlet a = \"unsafe { }\"; /* unsafe\n unsafe */\nlet r = r#\"unsafe\"#; let c = '\"'; unsafe { x() }\n}\n";
        assert_eq!(source(text).unsafe_lines(), [7]);
    }

    #[test]
    fn a_paragraph_has_words() {
        assert!(source("//! What this file is.\n").opens_with_paragraph());
        assert!(!source("//! shm\n").opens_with_paragraph());
        assert!(!source("use std::fs;\n").opens_with_paragraph());
    }

    #[test]
    fn paths_are_found_in_trees_types_and_macros_with_their_lines() {
        let text = "//! One two three.\n\nuse std::{thread, net::{self, Ipv4Addr as V4}};\n// std::process\nfn f() {\n    say!(\"{}\", std::fs::read(x));\n}\n";
        let paths = source(text).paths();
        let has = |line: usize, path: &str| paths.contains(&(line, path.split("::").map(str::to_owned).collect()));
        assert!(has(3, "std::thread") && has(3, "std::net::Ipv4Addr") && has(6, "std::fs::read"));
        assert!(!paths.iter().any(|(_, path)| path.contains(&"process".to_owned())));
    }

    #[test]
    fn what_is_not_rust_is_an_error_with_its_line() {
        assert!(Source::read("//! Words.\nfn (\n").is_err_and(|error| error.starts_with("line 2: ")));
    }
}
