//! A system call that softhca needs and the kernel refuses: which call, the error, and what to do
//! next.
//!
//! "Operation not permitted" alone does not help: in a container the reason is usually the seccomp
//! profile. The error stays an [`io::Error`] for all callers that pass it on; [`errno`] returns its
//! number. This is not for calls that fail in normal operation. Principal type: [`Denied`].

use std::error::Error;
use std::fmt;
use std::io;

use rustix::io::Errno;

/// A refused system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The name of the call in the manual pages.
    pub call: &'static str,
    /// The kernel's error.
    pub errno: Errno,
}

impl Denied {
    /// What the user can do about it, where this is known.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let Self { call, errno } = self;
        Some(match *errno {
            Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
                format!(
                    "allow {call} in the seccomp profile of the container or sandbox; softhca needs Linux 5.11 or newer"
                )
            }
            Errno::MFILE => "the process has too many open files: raise its limit (`ulimit -n`)".to_owned(),
            Errno::NFILE => "the system has too many open files: raise fs.file-max".to_owned(),
            Errno::FBIG => "the process may write no file as long as this, also none of shared memory: raise its limit (`ulimit -f`)".to_owned(),
            Errno::NOMEM | Errno::NOSPC => "free some memory, or raise the memory limit of the container".to_owned(),
            Errno::AGAIN => {
                "raise the limit of processes (`ulimit -u`), or the number that the container may have (pids.max)"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.errno)?;
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl Error for Denied {}

impl From<Denied> for io::Error {
    fn from(denied: Denied) -> Self {
        Self::new(denied.errno.kind(), denied)
    }
}

/// Makes the error of a refused call.
pub fn denied(call: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| Denied { call, errno }.into()
}

/// Names the call behind an error of the standard library.
pub fn named(call: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| match Errno::from_io_error(&error) {
        Some(errno) => Denied { call, errno }.into(),
        None => error,
    }
}

/// Names the call only if the kernel forbids it, for calls that also fail in normal operation.
pub fn forbidden(call: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| match errno {
        Errno::PERM | Errno::NOSYS => Denied { call, errno }.into(),
        errno => errno.into(),
    }
}

/// The text of an error. For the limit of open files the call's name is left out: the remedy is the
/// same for every call.
#[must_use]
pub fn told(error: &io::Error) -> String {
    let limit = Errno::from_io_error(error).filter(|errno| matches!(*errno, Errno::MFILE | Errno::NFILE | Errno::FBIG));
    match limit.and_then(|errno| Denied { call: "", errno }.advice()) {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

/// The number of an error, whether its call is named or not.
#[must_use]
pub fn errno(error: &io::Error) -> Option<i32> {
    let named = || error.get_ref()?.downcast_ref::<Denied>().map(|denied| denied.errno.raw_os_error());
    error.raw_os_error().or_else(named)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_refused_call_is_named_and_keeps_its_number() {
        for (error, words) in [
            (Errno::PERM, "seccomp"),
            (Errno::NOSYS, "Linux 5.11"),
            (Errno::MFILE, "ulimit -n"),
            (Errno::NOMEM, "memory limit"),
            (Errno::AGAIN, "ulimit -u"),
        ] {
            let refused = denied("memfd_create")(error);
            let text = refused.to_string();
            assert!(text.starts_with("memfd_create: ") && text.contains(words), "{text}");
            assert_eq!(errno(&refused), Some(error.raw_os_error()));
            assert_eq!(refused.kind(), error.kind());
        }
        let thread = named("pthread_create")(Errno::AGAIN.into());
        assert!(
            thread.to_string().starts_with("pthread_create: ") && thread.to_string().contains("pids.max"),
            "{thread}"
        );
        let full = forbidden("sendmsg")(Errno::TOOMANYREFS);
        assert_eq!(full.raw_os_error(), Some(Errno::TOOMANYREFS.raw_os_error()));
        assert_eq!(errno(&io::Error::other("else")), None);
        assert!(told(&Errno::MFILE.into()).contains("ulimit -n"));
        for (error, text) in [(Errno::INVAL.into(), "Invalid argument (os error 22)"), (io::Error::other("x"), "x")] {
            assert_eq!(told(&error), text);
        }
    }
}
