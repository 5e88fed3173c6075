//! Where in the program a call came from: the innermost frame of the stack that is the program's own.
//!
//! Frames are recognised by the file that their code was mapped from, and where a Rust program has everything in one file, by the names
//! of its functions. Files and lines are there if the program has debug information, names if it was not stripped; else an offset.
//! The principal type is [`Site`].

use std::backtrace::Backtrace;
use std::fs;

/// A place in the program. Names are looked up when it is told.
pub(crate) struct Site(Backtrace);

/// One frame.
#[derive(Default, Debug, PartialEq, Eq)]
struct Frame {
    address: u64,
    name: String,
    line: String,
}

impl Site {
    /// The call that is under way.
    pub(crate) fn capture() -> Self {
        Self(Backtrace::force_capture())
    }

    /// The place in words; None where no frame is the program's, as on a thread of ours.
    pub(crate) fn told(&self) -> Option<String> {
        told(&frames(&format!("{:#}", self.0)), &fs::read_to_string("/proc/self/maps").unwrap_or_default())
    }
}

fn told(frames: &[Frame], maps: &str) -> Option<String> {
    for frame in frames {
        let module = module(maps, frame.address);
        let file = module.as_ref().map_or("", |(path, _)| path.rsplit('/').next().unwrap_or(path));
        // Most calls go through functions that the header has.
        if is_ours(file, &frame.name) || frame.line.contains("/infiniband/verbs.h:") {
            continue;
        }
        if ["libc.so", "libpthread", "ld-linux"].iter().any(|libc| file.starts_with(libc)) {
            return None;
        }
        let unnamed = frame.name.is_empty() || frame.name == "<unknown>";
        return Some(match (unnamed, frame.line.is_empty(), &module) {
            (false, false, _) => format!("{} at {}", frame.name, frame.line),
            (false, true, _) if !file.is_empty() => format!("{} of {file}", frame.name),
            (false, true, _) => frame.name.clone(),
            (true, _, Some((_, offset))) => format!("{file}+{offset:#x}"),
            (true, _, None) => format!("{:#x}", frame.address),
        });
    }
    None
}

/// Whether the frame is of this library, of one on top of it, or of the runtime in between.
fn is_ours(file: &str, name: &str) -> bool {
    const FILES: [&str; 4] = ["libibverbs.so", "librdmacm.so", "librspreload.so", "libsofthca_preload.so"];
    const NAMES: [&str; 6] = ["softhca", "std::", "core::", "alloc::", "tokio::", "__rust"];
    let name = name.trim_start_matches(['<', '&']);
    FILES.iter().any(|ours| file.starts_with(ours)) || NAMES.iter().any(|ours| name.starts_with(ours))
}

/// The file that an address is mapped from, and how far from its beginning.
fn module(maps: &str, address: u64) -> Option<(&str, u64)> {
    let mut first = ("", 0);
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let path = rest.find('/').map_or("", |at| &rest[at..]);
        if path != first.0 {
            first = (path, start);
        }
        if (start..end).contains(&address) {
            return (!path.is_empty()).then(|| (path, address - first.1));
        }
    }
    None
}

/// The frames of a backtrace as it is printed in full: "  3:  0x5581 - name", and perhaps "at file:line:column" in the next line.
fn frames(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            if let Some(last) = frames.last_mut().filter(|last| last.line.is_empty()) {
                place.rsplit_once(':').map_or(place, |(line, _)| line).clone_into(&mut last.line);
            }
            continue;
        }
        // Of functions that were inlined only the name is given.
        let body = match line.split_once(':') {
            Some((number, body)) if number.bytes().all(|byte| byte.is_ascii_digit()) => body.trim_start(),
            _ => line,
        };
        let (address, name) = match body.split_once(" - ") {
            Some((address, name)) => (address.trim(), name),
            None => ("", body.trim_start_matches("- ")),
        };
        let address = address.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let address = address.or_else(|| frames.last().map(|last| last.address)).unwrap_or(0);
        frames.push(Frame { address, name: name.to_owned(), line: String::new() });
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5000-6000 r--p 00000000 00:00 1 /opt/prog
6000-7000 r-xp 00001000 00:00 1 /opt/prog
7f00-7f80 r-xp 00000000 00:00 2 /x/libibverbs.so.1.14.0
8000-8100 r-xp 00000000 00:00 3 /lib/libc.so.6
9000-9100 rw-p 00000000 00:00 0
";

    fn place(text: &str) -> Option<String> {
        told(&frames(text), MAPS)
    }

    #[test]
    fn the_innermost_frame_of_the_program_is_told() {
        let text = "   0:           0x7f10 - softhca_engine::lint::x\n                 at /src/a.rs:1:2\n   \
                    1:           0x7f20 - ibv_post_send\n   2:           0x6010 - send_all\n             at ./prog.c:33:7\n   \
                    3:           0x6020 - main\n";
        assert_eq!(place(text).as_deref(), Some("send_all at ./prog.c:33"));
    }

    #[test]
    fn without_debug_information_a_name_or_an_offset_is_told() {
        assert_eq!(place("   0:  0x6010 - main\n").as_deref(), Some("main of prog"));
        assert_eq!(place("   0:  0x6010 - <unknown>\n").as_deref(), Some("prog+0x1010"));
        assert_eq!(place("   0:  0x9010 - <unknown>\n").as_deref(), Some("0x9010"));
    }

    #[test]
    fn the_functions_of_the_header_are_not_the_programs() {
        let text = "   0:  0x6010 - ibv_post_send\n      at /usr/include/infiniband/verbs.h:3342:9\n      - send_all\n   at a.c:3:1\n";
        assert_eq!(place(text).as_deref(), Some("send_all at a.c:3"));
    }

    #[test]
    fn a_thread_of_ours_is_no_place() {
        assert_eq!(place("   0:  0x7f10 - <unknown>\n   1:  0x8010 - start_thread\n"), None);
    }

    #[test]
    fn inlined_functions_have_the_address_of_the_frame_that_they_are_in() {
        let text = "   0:  0x7f10 - a\n      - b\n   1:  0x6010 - c\n     at c.c:1:1\n";
        assert_eq!(frames(text).iter().map(|frame| frame.address).collect::<Vec<_>>(), [0x7f10, 0x7f10, 0x6010]);
    }

    #[test]
    fn a_capture_has_frames() {
        let frames = frames(&format!("{:#}", Site::capture().0));
        assert!(frames.iter().any(|frame| frame.address != 0 && frame.name.contains("lint::site")), "{frames:?}");
    }
}
