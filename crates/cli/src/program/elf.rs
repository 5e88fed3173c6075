//! The header, the dynamic section and the symbols of an ELF file, as far as they say how it is
//! loaded.
//!
//! This module reads one file and decides nothing. [`super::libraries`] finds the files that are
//! loaded together. The principal type is [`Object`].

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, ImportFlags, Object as _, ObjectSection, ObjectSymbol, ReadCache};

use super::blocks::Blocks;

/// The content of a file.
type Data = ReadCache<Blocks>;
type Elf<'a> = ElfFile64<'a, Endianness, &'a Data>;

/// The length of the start of a file that identifies its format.
const IDENT: u64 = 20;

/// An executable file.
#[derive(Debug)]
pub(super) enum Image {
    /// Not an ELF file.
    Other,
    /// For another machine, whose name is in the string.
    Foreign(String),
    /// A program that loads no libraries.
    Static { go: bool },
    /// A program that loads libraries, or a library.
    Dynamic(Box<Object>),
}

/// A file that the dynamic linker loads.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) path: PathBuf,
    /// The loader (PT_INTERP) that the kernel starts for the file.
    pub(super) interpreter: Option<PathBuf>,
    pub(super) soname: Option<String>,
    /// The libraries that the file needs.
    pub(super) needed: Vec<String>,
    pub(super) rpath: Option<String>,
    pub(super) runpath: Option<String>,
    /// The versions that the file needs of its libraries.
    pub(super) wants: Vec<Version>,
    /// The versions that the file defines. Empty if its symbols have no versions.
    pub(super) versions: HashSet<String>,
    pub(super) go: bool,
    symbols: OnceCell<Symbols>,
}

/// The symbols of an object.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// The functions and data that the file needs, each of one version of one library.
    pub(super) imports: Vec<Import>,
    /// The symbols that other files can use, each by its name alone and with its version
    /// (`name@version`).
    pub(super) exports: HashSet<String>,
    /// Functions of a program that other files cannot use.
    inner: HashSet<String>,
}

/// A version that an object needs of a library.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) library: String,
    pub(super) name: String,
}

/// A symbol that an object needs of a library.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) library: String,
    pub(super) name: String,
    pub(super) version: String,
}

impl Object {
    /// The symbols. They are read only when they are asked for, because the C library has
    /// thousands. None if they cannot be read.
    pub(super) fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| {
            let data = File::open(&self.path).and_then(Blocks::new).map(ReadCache::new);
            data.ok()
                .and_then(|data| symbols(&Elf::parse(&data).ok()?, self.interpreter.is_some()).ok())
                .unwrap_or_default()
        })
    }

    /// Whether the constants of the object contain a name.
    pub(super) fn has_constant(&self, name: &str) -> bool {
        let Ok(data) = File::open(&self.path).and_then(Blocks::new).map(ReadCache::new) else { return false };
        let constants = Elf::parse(&data).ok().and_then(|file| file.section_by_name(".rodata")?.data().ok());
        constants.is_some_and(|bytes| bytes.windows(name.len()).any(|bytes| bytes == name.as_bytes()))
    }

    /// Whether the object itself defines a function of this name.
    pub(super) fn defines_function(&self, name: &str) -> bool {
        let symbols = self.symbols();
        symbols.exports.contains(name) || symbols.inner.contains(name)
    }
}

/// Reads a file, but for its symbols.
pub(super) fn read(path: &Path) -> Result<Image, String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let mut ident = Vec::new();
    (&mut file).take(IDENT).read_to_end(&mut ident).map_err(|error| error.to_string())?;
    if !ident.starts_with(b"\x7fELF") {
        return Ok(Image::Other);
    }
    if let Some(kind) = foreign(&ident) {
        return Ok(Image::Foreign(kind));
    }
    let data = Blocks::new(file).map(ReadCache::new).map_err(|error| error.to_string())?;
    parse(path, &data).map_err(|error| format!("invalid ELF file: {error}"))
}

/// The machine that a file is for, if it is another machine.
fn foreign(ident: &[u8]) -> Option<String> {
    let machine = ident.get(18..20).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    match (ident.get(4), ident.get(5), machine) {
        (Some(1), ..) => Some("a 32-bit program".to_owned()),
        (_, Some(2), _) => Some("a program for a big-endian machine".to_owned()),
        (_, _, Some(machine)) if elf::Machine(machine) == elf::EM_X86_64 => None,
        (_, _, Some(machine)) => Some(match elf::Machine(machine) {
            elf::EM_AARCH64 => "a program for AArch64".to_owned(),
            elf::EM_RISCV => "a program for RISC-V".to_owned(),
            elf::EM_PPC64 => "a program for POWER".to_owned(),
            _ => format!("a program for ELF machine {machine}"),
        }),
        _ => Some("a truncated ELF file".to_owned()),
    }
}

fn parse(path: &Path, data: &Data) -> object::Result<Image> {
    let file = Elf::parse(data)?;
    let endian = file.endian();
    let mut object = Object { path: path.to_owned(), ..Object::default() };
    for segment in file.elf_program_headers() {
        if let Some(name) = segment.interpreter(endian, data)? {
            object.interpreter = Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
        }
    }
    object.go = file
        .sections()
        .any(|section| section.name_bytes().is_ok_and(|name| name == b".go.buildinfo" || name == b".note.go.buildid"));
    let table = file.elf_dynamic_table()?;
    for entry in &table {
        let Ok(text) = table.string(entry).map(text) else { continue };
        match entry.tag {
            elf::DT_NEEDED => object.needed.push(text),
            elf::DT_SONAME => object.soname = Some(text),
            elf::DT_RPATH => object.rpath = Some(text),
            elf::DT_RUNPATH => object.runpath = Some(text),
            _ => {}
        }
    }
    if object.interpreter.is_none() && object.soname.is_none() && is_program(&file) {
        return Ok(Image::Static { go: object.go });
    }
    versions(&file, data, &mut object)?;
    Ok(Image::Dynamic(Box::new(object)))
}

/// Whether the kernel would start the file. A library has no entry point.
fn is_program(file: &Elf<'_>) -> bool {
    let header: &FileHeader64<Endianness> = file.elf_header();
    header.e_type(file.endian()) == elf::ET_EXEC || file.entry() != 0
}

fn versions<'a>(file: &Elf<'a>, data: &'a Data, object: &mut Object) -> object::Result<()> {
    let (endian, sections) = (file.endian(), file.elf_section_table());
    if let Some((needs, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for need in needs {
            let (need, all) = need?;
            let library = text(need.file(endian, strings)?);
            for one in all {
                let one = one?;
                if !one.vna_flags.get(endian).contains(elf::VER_FLG_WEAK) {
                    let name = text(one.name(endian, strings)?);
                    object.wants.push(Version { library: library.clone(), name });
                }
            }
        }
    }
    if let Some((definitions, link)) = sections.gnu_verdef(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for definition in definitions {
            let (_, mut names) = definition?;
            if let Some(name) = names.next()? {
                object.versions.insert(text(name.name(endian, strings)?));
            }
        }
    }
    Ok(())
}

fn symbols(file: &Elf<'_>, is_program: bool) -> object::Result<Symbols> {
    let mut symbols = Symbols::default();
    for import in file.imports()? {
        let import = import?;
        let ImportFlags::Elf { version: Some(version), .. } = import.flags() else { continue };
        if !import.is_weak() && !import.library().is_empty() {
            let name = import.name().name().map(text).unwrap_or_default();
            symbols.imports.push(Import { library: text(import.library()), name, version: text(version) });
        }
    }
    for export in file.exports()? {
        let export = export?;
        let Some(name) = export.name().name().map(text) else { continue };
        if let object::ExportFlags::Elf { version: Some(version), .. } = export.flags() {
            symbols.exports.insert(format!("{name}@{}", text(version)));
        }
        symbols.exports.insert(name);
    }
    if is_program {
        let own = file.symbols().filter(|symbol| symbol.is_definition());
        symbols.inner.extend(own.filter_map(|symbol| symbol.name_bytes().ok().map(text)));
    }
    Ok(symbols)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
