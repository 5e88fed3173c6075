//! The packages that users install: `cargo xtask package` makes them from the folder under test,
//! and documented recipes use them.
//!
//! This module does not look into the packages. The principal type is [`Packages`].

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Dist, Room};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The packages of one run, in a folder.
#[derive(Debug, Clone)]
pub struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// Makes the packages under a umask. The umask must not change the packages.
    pub fn make(folder: &Path, mask: &str) -> Result<Self, String> {
        let script = format!("umask {mask} && exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["run", "--quiet", "--package", "xtask", "--", "package", "--dist"]);
        command.arg(Dist::locate()?.folder()).arg("--out").arg(folder).current_dir(root());
        // In a repository of another user, git refuses to work, so the time of the commit is not
        // available.
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        command.env("DEBFULLNAME", "A Maintainer").env("DEBEMAIL", "a@example.org");
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if output.status.success() {
            Ok(Self { folder: folder.to_owned() })
        } else {
            Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
        }
    }

    /// The tarball; `part` is empty, or `-debug` for the debug symbols.
    pub fn tarball(&self, part: &str) -> PathBuf {
        self.folder.join(format!("softhca-{VERSION}-x86_64-linux{part}.tar.gz"))
    }

    /// The Debian package.
    pub fn deb(&self) -> PathBuf {
        self.folder.join(format!("softhca_{VERSION}-0softhca1_amd64.deb"))
    }
}

/// The text of a code block on a page, between `opening` and the closing fence.
pub fn block(page: &str, opening: &str) -> Result<String, String> {
    let text = fs::read_to_string(root().join(page)).map_err(|error| format!("{page}: {error}"))?;
    let block = text.split(opening).nth(1).and_then(|rest| rest.split("```").next());
    block.map(str::to_owned).ok_or_else(|| format!("{page} has no block {opening:?}"))
}

/// The CMakeLists.txt of a user's project with one test.
pub const PROJECT: &str = "\
cmake_minimum_required(VERSION 3.20)
project(example C)
enable_testing()
add_executable(datagrams datagrams.c)
target_link_libraries(datagrams ibverbs)
add_test(NAME datagrams COMMAND datagrams)
";

/// Makes a folder with this project in the room. The room's user may write to the folder.
pub fn project(room: &Room) -> Result<PathBuf, String> {
    let folder = room.folder().join("project");
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir(&folder).map_err(told)?;
    fs::write(folder.join("CMakeLists.txt"), PROJECT).map_err(told)?;
    for file in ["datagrams.c", "common.h"] {
        fs::copy(root().join("suite/programs").join(file), folder.join(file)).map_err(told)?;
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(told)?;
    Ok(folder)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
