//! The agent's mirror of `/sys`: the files in which a kernel would describe a device. The agent
//! writes the files; this module only names the directory and reads them.

use crate::entry::{self, Refusal};
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// The run directory, as this process first found it: a program that changes its environment keeps
/// its device.
pub(crate) fn run_directory() -> &'static Path {
    DIRECTORY.get_or_init(engine::rundir::default)
}

/// Makes the tests of this process use their own directory.
#[cfg(test)]
pub(crate) fn use_directory(path: &Path) {
    assert_eq!(DIRECTORY.get_or_init(|| path.to_owned()), path, "nobody asked for the directory before");
}

/// The first line of a file of the mirror, without its newline, or `None` if the file does not
/// exist.
pub(crate) fn read_line(relative: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(engine::rundir::sysfs(run_directory()).join(relative)).ok()?;
    text.lines().next().map(str::to_owned)
}

/// `ibv_get_sysfs_path`: the directory to which programs append `/class/infiniband/…`.
pub(crate) extern "C" fn get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    entry::value("ibv_get_sysfs_path", || {
        let path = || engine::rundir::sysfs(run_directory()).into_os_string().into_vec();
        PATH.get_or_init(|| CString::new(path()).unwrap_or_default()).as_ptr()
    })
}

/// `ibv_read_sysfs_file`: reads `directory/file` into `buffer`, without the last newline and, if
/// there is room, with a final zero. Returns the length, or -1.
///
/// # Safety
/// `directory` and `file` are C strings, `buffer` has room for `size` bytes.
pub(crate) unsafe extern "C" fn read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    entry::or_minus_one("ibv_read_sysfs_file", || {
        entry::not_null(directory)?;
        entry::not_null(file)?;
        entry::not_null(buffer)?;
        // SAFETY: not NULL; the caller passes C strings.
        let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
        let path = Path::new(OsStr::from_bytes(directory.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        let text = read_at_most(&path, size)?;
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        // SAFETY: the caller's buffer has `size` bytes, and `read_at_most` returned no more than
        // that.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), text.len()) };
        if text.len() < size {
            // SAFETY: `text.len()` is inside the buffer.
            unsafe { buffer.add(text.len()).write(0) };
        }
        c_int::try_from(text.len()).map_err(|_| Refusal(libc::EFBIG))
    })
}

fn read_at_most(path: &Path, size: usize) -> Result<Vec<u8>, Refusal> {
    let refuse = |error: std::io::Error| Refusal(error.raw_os_error().unwrap_or(libc::EIO));
    let file = std::fs::File::open(path).map_err(refuse)?;
    let mut text = Vec::new();
    file.take(size as u64).read_to_end(&mut text).map_err(refuse)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_newline() {
        let directory = std::env::temp_dir();
        let name = format!("softhca-sysfs-test-{}", std::process::id());
        std::fs::write(directory.join(&name), "board-1\n").unwrap();
        let directory_c = CString::new(directory.into_os_string().into_vec()).unwrap();
        let name_c = CString::new(name).unwrap();
        let mut buffer = [1 as c_char; 16];
        // SAFETY: C strings, and a buffer with the size given.
        let length =
            unsafe { read_sysfs_file(directory_c.as_ptr(), name_c.as_ptr(), buffer.as_mut_ptr(), buffer.len()) };
        assert_eq!(length, 7);
        assert_eq!(buffer[7], 0);
        // SAFETY: as above; the size is smaller than the file.
        let length = unsafe { read_sysfs_file(directory_c.as_ptr(), name_c.as_ptr(), buffer.as_mut_ptr(), 3) };
        assert_eq!(length, 3);
        // SAFETY: as above.
        let length = unsafe { read_sysfs_file(directory_c.as_ptr(), c"missing".as_ptr(), buffer.as_mut_ptr(), 16) };
        assert_eq!(length, -1);
    }
}
