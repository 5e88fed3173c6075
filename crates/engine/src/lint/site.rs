//! The place in the program from which a call came: the innermost stack frame that belongs to the
//! program.
//!
//! Frames are recognised by the file that their code was mapped from. In a Rust program,
//! where all code is in one binary, they are recognised by the names of functions. File and line
//! are known if the program has debug information, names if it was not stripped; otherwise the
//! place is an offset.
//! Principal type: [`Site`].

use std::fs;

use backtrace::{Backtrace, BacktraceFrame, BacktraceSymbol};

/// A place in the program. Names are looked up when the place is reported.
pub(crate) struct Site(Backtrace);

/// One function of the stack. An inlined function has the address of the frame that contains it.
#[derive(Default, Debug, PartialEq, Eq)]
struct Frame {
    address: u64,
    /// Empty if unknown.
    name: String,
    /// `file:line`, or empty.
    line: String,
}

impl Site {
    /// The place of the current call.
    pub(crate) fn capture() -> Self {
        Self(Backtrace::new_unresolved())
    }

    /// The place in words; `None` if no frame belongs to the program, as on a thread of softhca.
    pub(crate) fn told(&self) -> Option<String> {
        let mut resolved = self.0.clone();
        resolved.resolve();
        told(&frames(resolved.frames()), &fs::read_to_string("/proc/self/maps").unwrap_or_default())
    }
}

/// All functions, the innermost first.
fn frames(resolved: &[BacktraceFrame]) -> Vec<Frame> {
    let named = |address, symbol: &BacktraceSymbol| {
        let file = symbol.filename().map(|path| path.display().to_string());
        let line = file.zip(symbol.lineno()).map(|(file, line)| format!("{file}:{line}"));
        // The alternative form omits the hash of Rust's names.
        let name = symbol.name().map(|name| format!("{name:#}"));
        Frame { address, name: name.unwrap_or_default(), line: line.unwrap_or_default() }
    };
    let each = |frame: &BacktraceFrame| -> Vec<Frame> {
        let address = frame.ip() as u64;
        match frame.symbols() {
            [] => vec![Frame { address, ..Frame::default() }],
            symbols => symbols.iter().map(|symbol| named(address, symbol)).collect(),
        }
    };
    resolved.iter().flat_map(each).collect()
}

fn told(frames: &[Frame], maps: &str) -> Option<String> {
    for frame in frames {
        let module = module(maps, frame.address);
        let file = module.as_ref().map_or("", |(path, _)| path.rsplit('/').next().unwrap_or(path));
        if is_ours(file, &frame.name) || is_of_a_library(&frame.line) {
            continue;
        }
        if ["libc.so", "libpthread", "ld-linux"].iter().any(|libc| file.starts_with(libc)) {
            return None;
        }
        return Some(match (frame.name.is_empty(), frame.line.is_empty(), &module) {
            (false, false, _) => format!("{} at {}", frame.name, frame.line),
            (false, true, _) if !file.is_empty() => format!("{} of {file}", frame.name),
            (false, true, _) => frame.name.clone(),
            (true, _, Some((_, offset))) => format!("{file}+{offset:#x}"),
            (true, _, None) => format!("{:#x}", frame.address),
        });
    }
    None
}

/// Whether the frame belongs to this library, a library on top of it, or the runtime in between.
fn is_ours(file: &str, name: &str) -> bool {
    const FILES: [&str; 5] =
        ["libibverbs.so", "librdmacm.so", "librspreload.so", "libsofthca_preload.so", "libsofthca_shared.so"];
    const NAMES: [&str; 6] = ["softhca", "std::", "core::", "alloc::", "tokio::", "__rust"];
    let name = name.trim_start_matches(['<', '&']);
    FILES.iter().any(|ours| file.starts_with(ours)) || NAMES.iter().any(|ours| name.starts_with(ours))
}

/// Whether a source file belongs to a library: a fetched Rust crate, Rust itself, this project, or
/// the verbs header, whose inline functions most calls go through. The name of an inlined function
/// may lack its crate.
fn is_of_a_library(line: &str) -> bool {
    const SOURCES: [&str; 6] = [
        "/infiniband/verbs.h:",
        "/registry/src/",
        "/git/checkouts/",
        "/rustc/",
        "/crates/engine/src/",
        "/crates/softhca/src/",
    ];
    SOURCES.iter().any(|source| line.contains(source))
}

/// The file that an address is mapped from, and the offset from the file's first mapping.
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

    /// The place in a stack of (address, name, file and line).
    fn place(stack: &[(u64, &str, &str)]) -> Option<String> {
        let frame =
            |&(address, name, line): &(u64, &str, &str)| Frame { address, name: name.into(), line: line.into() };
        told(&stack.iter().map(frame).collect::<Vec<_>>(), MAPS)
    }

    #[test]
    fn the_innermost_frame_of_the_program_is_told() {
        let stack = [
            (0x7f10, "softhca_engine::lint::x", "/src/a.rs:1"),
            (0x7f20, "ibv_post_send", ""),
            (0x6010, "send_all", "./prog.c:33"),
            (0x6020, "main", ""),
        ];
        assert_eq!(place(&stack).as_deref(), Some("send_all at ./prog.c:33"));
    }

    #[test]
    fn without_debug_information_a_name_or_an_offset_is_told() {
        assert_eq!(place(&[(0x6010, "main", "")]).as_deref(), Some("main of prog"));
        assert_eq!(place(&[(0x6010, "", "")]).as_deref(), Some("prog+0x1010"));
        assert_eq!(place(&[(0x9010, "", "")]).as_deref(), Some("0x9010"));
    }

    #[test]
    fn the_functions_of_the_header_are_not_the_programs() {
        let stack = [(0x6010, "ibv_post_send", "/usr/include/infiniband/verbs.h:3342"), (0x6010, "send_all", "a.c:3")];
        assert_eq!(place(&stack).as_deref(), Some("send_all at a.c:3"));
    }

    #[test]
    fn inlined_functions_of_libraries_are_not_the_programs() {
        let stack = [
            (0x6010, "capture", "/root/.cargo/registry/src/index/backtrace-0.3.77/src/capture.rs:294"),
            (0x6010, "post", "/src/softhca/crates/softhca/src/qp.rs:3"),
            (0x6010, "call_once", "/rustc/5980/library/core/src/ops/function.rs:250"),
            (0x6010, "send_all", "/src/softhca/crates/softhca/examples/bench.rs:9"),
        ];
        assert_eq!(place(&stack).as_deref(), Some("send_all at /src/softhca/crates/softhca/examples/bench.rs:9"));
    }

    #[test]
    fn a_thread_of_ours_is_no_place() {
        assert_eq!(place(&[(0x7f10, "", ""), (0x8010, "start_thread", "")]), None);
    }

    #[test]
    fn a_capture_has_frames_with_names_and_lines() {
        let mut trace = Site::capture().0;
        trace.resolve();
        let frames = frames(trace.frames());
        let here = |frame: &Frame| {
            frame.address != 0 && frame.name.ends_with("names_and_lines") && frame.line.contains("site.rs:")
        };
        assert!(frames.iter().any(here), "{frames:?}");
    }
}
