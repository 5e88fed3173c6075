//! The workspace as cargo sees it: its folders, its packages, and their dependencies.
//!
//! It reads `cargo metadata` once and changes nothing. The principal type is [`Workspace`].

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The used part of the output of `cargo metadata --no-deps`.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// The name in its Cargo.toml.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// The oldest Rust that builds it.
    rust_version: Option<String>,
    /// Where its source is published.
    pub(crate) repository: Option<String>,
    /// Its Cargo.toml.
    pub(crate) manifest_path: PathBuf,
    /// The registries that it may be published to; `None` for all, empty for `publish = false`.
    pub(crate) publish: Option<Vec<String>>,
    /// The package's dependencies, including packages outside the workspace.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One dependency of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// The package's name.
    pub(crate) name: String,
    /// `None` for an ordinary dependency, otherwise "dev" or "build".
    pub(crate) kind: Option<String>,
    /// The accepted versions. "*" if only a path is given.
    req: String,
}

impl Workspace {
    /// Runs `cargo metadata`.
    pub(crate) fn open() -> Result<Self, String> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let output = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(manifest)
            .output()
            .map_err(|error| format!("cargo metadata: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
    }

    /// The folder with the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        &self.workspace_root
    }

    /// The folder that cargo builds in.
    pub(crate) fn target(&self) -> &Path {
        &self.target_directory
    }

    /// The workspace's packages.
    pub(crate) fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// The version of all packages, which is the version of the program.
    pub(crate) fn version(&self) -> Result<&str, String> {
        let program = self.packages.iter().find(|package| package.name == "softhca-cli");
        program.map(|package| package.version.as_str()).ok_or_else(|| "there is no package softhca-cli".to_owned())
    }

    /// The oldest Rust that builds the packages.
    pub(crate) fn oldest_rust(&self) -> Result<&str, String> {
        let mut versions = self.packages.iter().filter_map(|package| package.rust_version.as_deref());
        versions.next().ok_or_else(|| "Cargo.toml names no rust-version".to_owned())
    }

    /// A cargo command that runs at the workspace's root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo();
        command.args(arguments).current_dir(&self.workspace_root);
        // The cargo that runs this program sets these variables. In the builds that this program
        // starts, they would describe the wrong package.
        command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_PKG_NAME").env_remove("CARGO_PKG_VERSION");
        command
    }
}

impl Dependency {
    /// Whether a registry sees the dependency. It does not see a dev-dependency without a version.
    pub(crate) fn is_published(&self) -> bool {
        self.kind.as_deref() != Some("dev") || self.req != "*"
    }
}

impl Package {
    /// The package's folder.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
