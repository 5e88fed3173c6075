//! The text of one Rust file for the tidy rules. Rules about code use the text without comments and
//! literals.
//!
//! It is not a parser: it knows comments, string and character literals, and words. The principal
//! type is [`Source`].

/// A Rust file: its text, and its code without comments and literals.
#[derive(Debug)]
pub(super) struct Source {
    text: String,
    code: Vec<String>,
}

impl Source {
    /// Reads a file's text.
    pub(super) fn read(text: &str) -> Self {
        Self { text: text.to_owned(), code: code_lines(text) }
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
        let says_unsafe =
            |line: &str| line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe");
        self.numbered().filter(|(_, line)| says_unsafe(line)).map(|(number, _)| number).collect()
    }

    /// The places where code mentions one of the words.
    pub(super) fn mentions<'a>(&self, words: &[&'a str]) -> Vec<(usize, &'a str)> {
        self.numbered()
            .flat_map(|(number, line)| {
                words.iter().filter(move |word| line.contains(**word)).map(move |word| (number, *word))
            })
            .collect()
    }

    /// The lines of code that are not only for tests, and the names of modules in separate files
    /// that are only for tests.
    pub(super) fn without_tests(&self) -> (Vec<String>, Vec<String>) {
        let (mut kept, mut only_tests) = (Vec::new(), Vec::new());
        let mut lines = self.code.iter();
        while let Some(line) = lines.next() {
            let attribute = line.trim_start();
            if !(attribute.starts_with("#[cfg(test") || attribute.starts_with("#[cfg(all(test")) {
                kept.push(line.clone());
                continue;
            }
            let mut depth = 0_i32;
            for line in lines.by_ref().skip_while(|line| line.trim_start().starts_with("#[")) {
                if let Some((_, name)) = line.split_once("mod ").filter(|_| depth == 0) {
                    only_tests.extend(name.strip_suffix(';').map(str::to_owned));
                }
                let ends = |depth: &mut i32, letter: char| {
                    *depth += match letter {
                        '{' | '(' | '[' => 1,
                        '}' | ')' | ']' => -1,
                        _ => 0,
                    };
                    *depth == 0 && matches!(letter, '}' | ';' | ',')
                };
                if line.chars().any(|letter| ends(&mut depth, letter)) {
                    break;
                }
            }
        }
        (kept, only_tests)
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()))
    }
}

/// The lines with comments and literals blanked.
fn code_lines(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < letters.len() {
        let end = literal_end(&letters, at).unwrap_or(at);
        if end > at {
            // Line ends stay, so that line numbers stay.
            code.extend(letters[at..end].iter().filter(|letter| **letter == '\n'));
            code.push(' ');
            at = end;
        } else {
            code.push(letters[at]);
            at += 1;
        }
    }
    code.lines().map(str::to_owned).collect()
}

/// The end of a comment or literal that begins at `at`.
fn literal_end(letters: &[char], at: usize) -> Option<usize> {
    let rest = &letters[at..];
    let starts = |with: &str| rest.iter().copied().take(with.len()).eq(with.chars());
    if starts("//") {
        return Some(rest.iter().position(|letter| *letter == '\n').map_or(letters.len(), |length| at + length));
    }
    if starts("/*") {
        return Some(block_end(letters, at));
    }
    if rest[0] == '"' {
        return Some(quoted_end(letters, at + 1, '"'));
    }
    let in_word = at > 0 && (letters[at - 1].is_alphanumeric() || letters[at - 1] == '_');
    if rest[0] == 'r' && !in_word {
        let hashes = rest[1..].iter().take_while(|letter| **letter == '#').count();
        if rest.get(1 + hashes) == Some(&'"') {
            return Some(raw_end(letters, at + 2 + hashes, hashes));
        }
    }
    // A character literal, not a lifetime: '\…' or 'x'.
    if rest[0] == '\'' && (rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'')) {
        return Some(quoted_end(letters, at + 1, '\''));
    }
    None
}

fn block_end(letters: &[char], start: usize) -> usize {
    let mut depth = 0_u32;
    let mut at = start;
    while at + 1 < letters.len() {
        match (letters[at], letters[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') if depth == 1 => return at + 2,
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    letters.len()
}

fn quoted_end(letters: &[char], start: usize, quote: char) -> usize {
    let mut at = start;
    while at < letters.len() {
        match letters[at] {
            '\\' => at += 2,
            letter if letter == quote => return at + 1,
            _ => at += 1,
        }
    }
    letters.len()
}

fn raw_end(letters: &[char], start: usize, hashes: usize) -> usize {
    let closes = |at: usize| {
        letters[at] == '"' && letters[at + 1..].iter().take(hashes).filter(|letter| **letter == '#').count() == hashes
    };
    (start..letters.len()).find(|at| closes(*at)).map_or(letters.len(), |at| at + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn unsafe_in_words_comments_and_strings_is_not_code() {
        let text = "//! A file of words.\n// unsafe\nlet a = \"unsafe { }\"; /* unsafe\n unsafe */\n#![forbid(unsafe_code)]\nlet r = r#\"unsafe\"#; let c = '\"'; unsafe { x() }\n";
        assert_eq!(Source::read(text).unsafe_lines(), [6]);
    }

    #[test]
    fn a_paragraph_has_words() {
        assert!(Source::read("//! What this file is.\n").opens_with_paragraph());
        assert!(!Source::read("//! shm\n").opens_with_paragraph());
        assert!(!Source::read("use std::fs;\n//! What this file is.\n").opens_with_paragraph());
    }

    #[test]
    fn mentions_have_line_numbers() {
        let source = Source::read("//! One two three.\n\nuse std::thread;\n// std::net\n");
        assert_eq!(source.mentions(&["std::thread", "std::net"]), [(3, "std::thread")]);
    }
}
