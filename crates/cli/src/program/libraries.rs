//! Finds the libraries that a program loads under `softhca run`, as the dynamic linker does, and
//! checks them. Each library must exist and have the versions that other objects need of it. The
//! RDMA libraries must be softhca's.
//!
//! The order of `ld.so(8)`: `DT_RPATH` of the object and of the objects that loaded it,
//! `LD_LIBRARY_PATH`, `DT_RUNPATH` of the object, the cache, the usual folders. A name that is
//! already loaded is not looked up again. Libraries that a program loads later by `dlopen` are not
//! known here. The principal function is [`check`].

use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::elf::{self, Image, Import, Object};
use super::{WHAT, cache, search_path};
use crate::finding::Finding;
use crate::place::{self, SYSTEM_FOLDERS};

/// The libraries that softhca provides instead of the system's.
const OURS: [&str; 2] = [place::LIBRARY, "librdmacm.so.1"];

/// How many missing symbols are named.
const NAMED: usize = 3;

/// Objects that are loaded together, in the order of loading.
struct Loaded {
    objects: Vec<Node>,
    /// Indices of the objects by the names under which other objects need them.
    names: HashMap<String, usize>,
    /// Names that were not found, each with the object that needs it.
    missing: Vec<(String, usize)>,
    search: Vec<PathBuf>,
    cache: HashMap<String, PathBuf>,
}

struct Node {
    object: Object,
    /// The object that needed this one first.
    loader: Option<usize>,
}

/// What is wrong with the libraries of `program` when softhca's lie in `folder`.
pub(super) fn check(program: &Object, folder: &Path, preloaded: &[PathBuf]) -> Vec<Finding> {
    let loaded = Loaded::of(program, folder, preloaded);
    let mut findings = loaded.missing();
    findings.extend(loaded.versions());
    findings.extend(loaded.strangers(folder));
    if findings.is_empty() {
        findings.extend(loaded.symbols());
    }
    findings
}

/// Whether `program` loads a library of this name when it starts.
pub(super) fn uses(program: &Object, folder: &Path, library: &str) -> bool {
    Loaded::of(program, folder, &[]).names.contains_key(library)
}

impl Loaded {
    fn of(program: &Object, folder: &Path, preloaded: &[PathBuf]) -> Self {
        let search = search_path(folder, env::var_os(place::LIBRARY_PATH));
        let search =
            env::split_paths(&search).map(|folder| if folder.as_os_str().is_empty() { ".".into() } else { folder });
        let mut loaded = Self {
            objects: Vec::new(),
            names: HashMap::new(),
            missing: Vec::new(),
            search: search.collect(),
            cache: cache::read(),
        };
        for path in std::iter::once(&program.path).chain(preloaded) {
            if let Some(object) = library(path) {
                loaded.add(object, None);
            }
        }
        let mut next = 0;
        while next < loaded.objects.len() {
            for name in loaded.objects[next].object.needed.clone() {
                if loaded.names.contains_key(&name) {
                    continue;
                }
                match loaded.find(&name, next) {
                    Some(object) => {
                        let at = loaded.add(object, Some(next));
                        loaded.names.insert(name, at);
                    }
                    None if loaded.missing.iter().any(|(missing, _)| *missing == name) => {}
                    None => loaded.missing.push((name, next)),
                }
            }
            next += 1;
        }
        loaded
    }

    fn add(&mut self, object: Object, loader: Option<usize>) -> usize {
        let at = self.objects.len();
        if let Some(soname) = &object.soname {
            self.names.entry(soname.clone()).or_insert(at);
        }
        self.objects.push(Node { object, loader });
        at
    }

    /// The library of a name that the object `by` needs.
    fn find(&self, name: &str, by: usize) -> Option<Object> {
        if name.contains('/') {
            return library(&PathBuf::from(expanded(name, &self.objects[by].object)));
        }
        let asks = &self.objects[by].object;
        let mut folders = Vec::new();
        if asks.runpath.is_none() {
            let mut next = Some(by);
            while let Some(at) = next {
                folders.extend(listed(&self.objects[at].object, |object| {
                    object.rpath.as_ref().filter(|_| object.runpath.is_none())
                }));
                next = self.objects[at].loader;
            }
            // The program's own RPATH applies to all objects.
            folders.extend(listed(&self.objects[0].object, |object| {
                object.rpath.as_ref().filter(|_| object.runpath.is_none())
            }));
        }
        folders.extend(self.search.iter().cloned());
        folders.extend(listed(asks, |object| object.runpath.as_ref()));
        let first = folders.iter().find_map(|folder| library(&folder.join(name)));
        let usual = || SYSTEM_FOLDERS.iter().find_map(|folder| library(&Path::new(folder).join(name)));
        first.or_else(|| library(self.cache.get(name)?)).or_else(usual)
    }

    fn missing(&self) -> Vec<Finding> {
        let one = |(name, by): &(String, usize)| {
            let found = format!("{} needs {name}, which was not found", self.objects[*by].object.path.display());
            Finding::fail(
                WHAT,
                found,
                format!("install the package that contains {name}, or add its folder to LD_LIBRARY_PATH"),
            )
        };
        self.missing.iter().map(one).collect()
    }

    /// Versions that an object needs and the library does not have. The dynamic linker refuses to
    /// start such a program.
    fn versions(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for Node { object, .. } in &self.objects {
            for want in &object.wants {
                let Some(has) = self.names.get(&want.library).map(|at| &self.objects[*at].object) else { continue };
                // The dynamic linker accepts a library without versions.
                if has.versions.is_empty() || has.versions.contains(&want.name) {
                    continue;
                }
                let (shown, file) = (object.path.display(), has.path.display());
                let found =
                    format!("{shown} needs version {} of {}, which {file} does not have", want.name, want.library);
                let next = if OURS.contains(&want.library.as_str()) {
                    "build it against older rdma-core headers, or use a newer softhca"
                } else {
                    "build it on this system, or on a system with older libraries"
                };
                findings.push(Finding::fail(WHAT, found, next));
            }
        }
        findings
    }

    /// RDMA libraries that are not softhca's.
    fn strangers(&self, folder: &Path) -> Vec<Finding> {
        let mut findings = Vec::new();
        for name in OURS {
            let Some(node) = self.names.get(name).map(|at| &self.objects[*at]) else { continue };
            let same = |path: &Path| path.canonicalize().ok();
            let ours = folder.join(name);
            if same(&node.object.path) == same(&ours) {
                continue;
            }
            let found = format!(
                "{} loads {}, not softhca's {}{}",
                self.objects[0].object.path.display(),
                node.object.path.display(),
                ours.display(),
                self.why(node)
            );
            findings.push(Finding::fail(WHAT, found, "remove the path (patchelf --remove-rpath FILE), or link with -Wl,--enable-new-dtags: LD_LIBRARY_PATH comes before RUNPATH"));
        }
        findings
    }

    /// The object whose RPATH leads to a library.
    fn why(&self, node: &Node) -> String {
        let mut next = node.loader;
        while let Some(at) = next {
            let object = &self.objects[at].object;
            if let Some(rpath) = &object.rpath {
                return format!(": RPATH {rpath} of {} comes before LD_LIBRARY_PATH", object.path.display());
            }
            next = self.objects[at].loader;
        }
        node.loader.map(|at| format!(" (needed by {})", self.objects[at].object.path.display())).unwrap_or_default()
    }

    /// Functions that an object needs of softhca's libraries and that no object has. The program
    /// ends when it calls one.
    fn symbols(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let calls_ours = |node: &&Node| node.object.needed.iter().any(|library| OURS.contains(&library.as_str()));
        for Node { object, .. } in self.objects.iter().filter(calls_ours) {
            let nobody_has = |import: &&Import| {
                let Import { library, name, version } = *import;
                let ours = OURS.contains(&library.as_str());
                let versioned = format!("{name}@{version}");
                let has = |node: &Node| {
                    let all = &node.object.symbols().exports;
                    all.contains(&versioned) || node.object.versions.is_empty() && all.contains(name.as_str())
                };
                ours && !self.objects.iter().any(has)
            };
            let missing: Vec<String> = object
                .symbols()
                .imports
                .iter()
                .filter(nobody_has)
                .map(|import| format!("{}@{}", import.name, import.version))
                .collect();
            if !missing.is_empty() {
                let more = missing.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let named = missing[..missing.len().min(NAMED)].join(", ");
                let found =
                    format!("{} calls {named}{more}, which softhca's libraries do not have", object.path.display());
                findings.push(Finding::fail(
                    WHAT,
                    found,
                    "the program ends when it calls one of them; build it without these functions",
                ));
            }
        }
        findings
    }
}

/// A file that the dynamic linker can load.
fn library(path: &Path) -> Option<Object> {
    match elf::read(path) {
        Ok(Image::Dynamic(object)) => Some(*object),
        _ => None,
    }
}

/// The folders of one of an object's lists, with `$ORIGIN` and the like replaced.
fn listed<'a>(object: &'a Object, list: impl Fn(&'a Object) -> Option<&'a String>) -> Vec<PathBuf> {
    let list = list(object).map(|list| expanded(list, object)).unwrap_or_default();
    list.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from).collect()
}

/// Replaces `$ORIGIN` and the like, as the dynamic linker does.
fn expanded(list: &str, object: &Object) -> String {
    let path = object.path.canonicalize().unwrap_or_else(|_| object.path.clone());
    let origin = path.parent().map(Path::as_os_str).unwrap_or(OsStr::new(".")).to_string_lossy().into_owned();
    let mut list = list.to_owned();
    for (name, value) in [("ORIGIN", origin.as_str()), ("LIB", "lib/x86_64-linux-gnu"), ("PLATFORM", "x86_64")] {
        list = list.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value);
    }
    list
}
