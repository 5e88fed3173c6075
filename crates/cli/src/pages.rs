//! `softhca pages FOLDER`: makes the man pages, and the completions of bash, zsh and fish, from the
//! definition of the command line.
//!
//! Packages contain these files. The command is hidden because only packagers need it. The folders
//! are those of `/usr/share`. The principal function is [`write()`].

use std::fs;
use std::io;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::arguments::Arguments;
use crate::failure::Failure;

const NAME: &str = "softhca";

/// The path of each shell's completions.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/softhca"),
    (Shell::Zsh, "zsh/site-functions/_softhca"),
    (Shell::Fish, "fish/vendor_completions.d/softhca.fish"),
];

/// The start of a text after the options that contains only examples.
const EXAMPLES: &str = "Examples:\n";

/// Writes all pages and completions below `folder`, which is created. `date` is the date on the
/// pages.
pub(crate) fn write(folder: &Path, date: &str) -> Result<String, Failure> {
    files(folder, date).map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
    Ok(String::new())
}

fn files(folder: &Path, date: &str) -> io::Result<()> {
    let mut offered = visible();
    offered.set_bin_name(NAME);
    offered.build();
    for (shell, path) in COMPLETIONS {
        let mut text = Vec::new();
        shell.try_generate(&offered, &mut text)?;
        put(&folder.join(path), &text)?;
    }
    // `help run` gets no page of its own; `man softhca-run` has that text.
    let mut described = visible().disable_help_subcommand(true);
    described.build();
    pages(&described, date, &folder.join("man/man1"))
}

/// Writes the pages of a command and of its subcommands.
fn pages(command: &Command, date: &str, folder: &Path) -> io::Result<()> {
    let (name, text) = page(command, date)?;
    put(&folder.join(name), &text)?;
    command.get_subcommands().try_for_each(|below| pages(below, date, folder))
}

fn page(command: &Command, date: &str) -> io::Result<(String, Vec<u8>)> {
    let source = concat!("softhca ", env!("CARGO_PKG_VERSION"));
    // The text after the options is written line by line. As a paragraph it would lose its columns.
    let options = Man::new(command.clone().after_help(Resettable::Reset));
    let mut text = Vec::new();
    let man = options.date(date).source(source).manual("softhca manual");
    man.render(&mut text)?;
    if let Some(below) = command.get_after_help().map(ToString::to_string) {
        let (heading, below) =
            below.strip_prefix(EXAMPLES).map_or(("NOTES", below.as_str()), |rest| ("EXAMPLES", rest));
        let mut roff = Roff::new();
        roff.control("SH", [heading]).control("nf", []).text([roman(below)]).control("fi", []);
        roff.to_writer(&mut text)?;
    }
    Ok((man.get_filename(), text))
}

/// The command line without its hidden commands, which shells would otherwise offer.
fn visible() -> Command {
    let all = Arguments::command();
    let about = all.get_about().cloned().unwrap_or_default();
    let examples = all.get_after_help().cloned().unwrap_or_default();
    Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .after_help(examples)
        .subcommand_required(true)
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{COMPLETIONS, write};

    #[test]
    fn every_command_has_a_page_and_hidden_ones_are_not_offered() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "2026-01-31").expect("written");
        let read =
            |path: &str| fs::read_to_string(folder.path().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        for page in ["softhca", "softhca-run", "softhca-fault", "softhca-fault-add", "softhca-doctor"] {
            let text = read(&format!("man/man1/{page}.1"));
            assert!(text.contains(&format!(".TH {page} 1 2026-01-31 \"softhca ")), "{text}");
        }
        assert!(!folder.path().join("man/man1/softhca-pages.1").exists());
        for (_, path) in COMPLETIONS {
            let text = read(path);
            assert!(text.contains("capture") && !text.contains("pages"), "{path}");
        }
    }

    #[test]
    fn examples_keep_their_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "2026-01-31").expect("written");
        let page = fs::read_to_string(folder.path().join("man/man1/softhca-show.1")).expect("a page");
        let (_, examples) = page.split_once(".SH EXAMPLES\n.nf\n").expect("examples, not filled");
        assert!(examples.contains("show qp                 One line per queue pair"), "{examples}");
        assert!(examples.trim_end().ends_with(".fi"), "{examples}");
    }
}
