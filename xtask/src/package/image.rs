//! The OCI image: a small Debian with the Debian package installed, as a folder that skopeo, podman
//! and registries read.
//!
//! It needs no daemon and no root: mmdebstrap makes the file system, and the rest is three JSON
//! files named by their digests. The image is reproducible only with an unchanged mirror. The
//! principal function is [`build`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::BuildInfo;
use super::archive::compress;
use super::tool::Tool;

/// The Debian release on which packages are built, with the programs of the demo.
const DEBIAN: &str = "bookworm";
const PROGRAMS: &str = "ibverbs-utils,perftest";

/// What `podman run IMAGE` shows: a device, and two of Debian's programs that talk over it.
const DEMO: &str = "ibv_devinfo; ibv_rc_pingpong -g 0 & server=$!; \
    until ibv_rc_pingpong -g 0 127.0.0.1 2>/dev/null || ! kill -0 $server 2>/dev/null; do sleep 0.1; done; wait $server";

/// Debian's user nobody.
const USER: &str = "65534:65534";

/// Makes the image's folder in `out`, and replaces a previous one.
pub(super) fn build(release: &BuildInfo, deb: &Path, scratch: &Path, out: &Path) -> Result<PathBuf, String> {
    let folder = out.join(format!("softhca-{}-oci", release.version));
    let layer = scratch.join("layer.tar");
    file_system(release, deb, &layer)?;
    let told = |error: io::Error| format!("{}: {error}", folder.display());
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(told(error)),
        _ => fs::create_dir_all(folder.join("blobs/sha256")).map_err(told)?,
    }
    write(release, &layer, &folder)?;
    Ok(folder)
}

fn file_system(release: &BuildInfo, deb: &Path, layer: &Path) -> Result<(), String> {
    let hooks = [
        format!("--customize-hook=upload {} /softhca.deb", quoted(deb)),
        "--customize-hook=chroot \"$1\" dpkg --install /softhca.deb".to_owned(),
        "--customize-hook=rm \"$1/softhca.deb\"".to_owned(),
    ];
    Tool::new("mmdebstrap")
        .env("SOURCE_DATE_EPOCH", release.time.to_string())
        .args(["--variant=minbase", "--format=tar"])
        .args([format!("--include={PROGRAMS}")])
        .args(hooks)
        .args([Path::new(DEBIAN), layer])
        .run()
}

fn write(release: &BuildInfo, layer: &Path, folder: &Path) -> Result<(), String> {
    let plain = digest(layer)?;
    compress(layer)?;
    let layer = blob(&layer.with_extension("tar.gz"), folder, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let created = release.date("+%Y-%m-%dT%H:%M:%SZ")?;
    let labels = json!({
        "org.opencontainers.image.title": "softhca",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    });
    let configuration = json!({
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": USER,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": ["softhca"],
            "Cmd": ["run", "--", "sh", "-c", DEMO],
            "WorkingDir": "/tmp",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{plain}")] },
        "history": [{ "created": created, "created_by": "cargo xtask package --image" }],
    });
    let configuration = text_blob(&configuration, folder, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": configuration,
        "layers": [layer],
    });
    let mut manifest = text_blob(&manifest, folder, "application/vnd.oci.image.manifest.v1+json")?;
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": release.version });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    put(&folder.join("index.json"), &index)?;
    put(&folder.join("oci-layout"), &json!({ "imageLayoutVersion": "1.0.0" }))
}

/// Writes a JSON file to the blobs and returns its descriptor.
fn text_blob(text: &Value, folder: &Path, media_type: &str) -> Result<Value, String> {
    let path = folder.join("blobs/unnamed");
    put(&path, text)?;
    blob(&path, folder, media_type)
}

/// Moves a file to the blobs, named by its digest, and returns its descriptor.
fn blob(path: &Path, folder: &Path, media_type: &str) -> Result<Value, String> {
    let told = |error: io::Error| format!("{}: {error}", path.display());
    let (digest, size) = (digest(path)?, fs::metadata(path).map_err(told)?.len());
    fs::rename(path, folder.join("blobs/sha256").join(&digest)).map_err(told)?;
    Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size }))
}

fn put(path: &Path, text: &Value) -> Result<(), String> {
    fs::write(path, text.to_string()).map_err(|error| format!("{}: {error}", path.display()))
}

fn digest(path: &Path) -> Result<String, String> {
    let told = Tool::new("sha256sum").args(["--"]).args([path]).output()?;
    told.get(..64).map(str::to_owned).ok_or_else(|| format!("sha256sum printed no digest: {told}"))
}

/// A path, quoted for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"))
}
