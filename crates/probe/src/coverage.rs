//! `gpuwhy probe coverage`: which kernels of programs, libraries and wheels a probe can reach.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use gpuwhy_gpubpf::image::{
    Arch, Content, Coverage, Cubin, ELF_MAGIC, FATBIN_MAGIC, Found, Images, MAX_IMAGE, Way,
    is_binary, sections,
};
use gpuwhy_gpubpf::ptx::MAX_TEXT;
use gpuwhy_gpubpf::splice::Names;
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use serde_json::{Value, json};

/// What is looked at, and how it is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Programs, libraries, wheels (.whl), fat binaries, cubins, PTX; directories with such files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The GPU that the kernels are to run on, by its compute capability
    #[arg(long, value_name = "ARCH", default_value = "sm_90")]
    device: Arch,
    /// List each kernel whose name is like this, mangled or demangled (`*gemm*`)
    #[arg(long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "*")]
    kernels: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The largest file of a wheel, in bytes: what is taken out of it fills a disk for a while.
const MAX_MEMBER: u64 = 16 << 30;

/// How deep directories are looked into.
const MAX_DEPTH: usize = 32;

/// What was found in a file, or in a file of a wheel.
#[derive(Debug, Default)]
struct Looked {
    name: String,
    /// Fat binaries: one for each translation unit.
    units: usize,
    /// How many images for each architecture, PTX and machine code.
    images: BTreeMap<(Arch, bool), u64>,
    kernels: Vec<Found>,
    /// Kernels that wait to be linked and are no part of what a driver is given.
    unlinked: usize,
    notes: Vec<String>,
}

impl Looked {
    fn count(&self, way: Way) -> usize {
        self.kernels.iter().filter(|kernel| kernel.way == way).count()
    }

    fn holds_nothing(&self) -> bool {
        self.images.is_empty() && self.kernels.is_empty() && self.notes.is_empty()
    }
}

/// Exit code 1 where something could not be read, or nothing was found.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut looked = Vec::new();
    for path in &options.files {
        look(path, options.device.number, &mut looked, 0)?;
    }
    let without = looked.iter().filter(|one| one.holds_nothing()).count();
    looked.retain(|one| !one.holds_nothing());
    if options.json {
        terminal::say_json(&format!("{:#}", document(&looked, without, options)))?;
    } else {
        terminal::show(&page(&looked, without, options))?;
    }
    let damaged = looked.iter().any(|one| !one.notes.is_empty());
    Ok(if damaged || looked.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Looks into a file or, file by file, into a directory.
fn look(path: &Path, device: u32, to: &mut Vec<Looked>, depth: usize) -> Result<()> {
    let told = || format!("cannot read `{}`", path.display());
    let kind = std::fs::metadata(path).with_context(told)?;
    if kind.is_dir() {
        if depth == MAX_DEPTH {
            bail!("`{}` lies {MAX_DEPTH} directories deep; no deeper is looked", path.display());
        }
        let entries: io::Result<Vec<_>> = std::fs::read_dir(path).with_context(told)?.collect();
        let mut entries = entries.with_context(told)?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            // Links are not followed: what they name is there under its own name, or lies elsewhere.
            let kind = entry.file_type().with_context(told)?;
            if kind.is_dir() || kind.is_file() {
                look(&entry.path(), device, to, depth + 1)?;
            }
        }
        return Ok(());
    }
    if !kind.is_file() {
        bail!("`{}` is no file and no directory", path.display());
    }
    let mut file = File::open(path).with_context(told)?;
    let name = path.display().to_string();
    if path.extension().is_some_and(|end| end == "whl" || end == "zip") {
        return archive(file, &name, device, to).with_context(|| format!("`{name}`"));
    }
    to.push(file_of(&mut file, name, device).with_context(told)?);
    Ok(())
}

/// Looks into the files of a wheel; each that may hold device code is taken out of it for as long as that takes.
fn archive(file: File, name: &str, device: u32, to: &mut Vec<Looked>) -> Result<()> {
    let mut archive = zip::ZipArchive::new(BufReader::new(file))?;
    for number in 0..archive.len() {
        let mut member = archive.by_index(number)?;
        if !member.is_file() {
            continue;
        }
        let name = format!("{name}/{}", member.name()?);
        let mut start = [0; 4];
        let begun = read_up_to(&mut member, &mut start)?;
        if !is_binary(&start[..begun]) && Path::new(&name).extension().is_none_or(|e| e != "ptx") {
            to.push(Looked { name, ..Looked::default() });
            continue;
        }
        if member.size() > MAX_MEMBER {
            bail!("`{name}` has {} bytes; at most {MAX_MEMBER}", member.size());
        }
        let mut out = tempfile::tempfile().context("cannot make a file to unpack into")?;
        io::Write::write_all(&mut out, &start[..begun])?;
        // What is said of its size binds it.
        let rest = member.size().saturating_sub(begun as u64);
        io::copy(&mut member.by_ref().take(rest), &mut out)
            .with_context(|| format!("cannot unpack `{name}`"))?;
        to.push(file_of(&mut out, name, device)?);
    }
    Ok(())
}

fn read_up_to(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Looks into one file.
fn file_of(file: &mut File, name: String, device: u32) -> Result<Looked> {
    let mut looked = Looked { name, ..Looked::default() };
    let length = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut start = [0; 20];
    let read = read_up_to(file, &mut start)?;
    file.rewind()?;
    // Bytes 18 and 19 of an ELF file say for which machine.
    match (start.get(..4), u16::from_le_bytes([start[18], start[19]])) {
        (Some(four), _) if four == FATBIN_MAGIC => images(&mut *file, device, true, &mut looked),
        (Some(four), Cubin::MACHINE) if four == ELF_MAGIC => {
            cubin(file, length, device, &mut looked)
        }
        (Some(four), _) if four == ELF_MAGIC => host(file, device, &mut looked),
        _ if Path::new(&looked.name).extension().is_some_and(|end| end == "ptx") && read > 0 => {
            ptx(file, length, device, &mut looked)?;
        }
        _ => {}
    }
    Ok(looked)
}

/// A program or library of the host.
fn host(file: &mut File, device: u32, looked: &mut Looked) {
    let found = match sections(&mut *file) {
        Ok(found) => found,
        Err(error) => return looked.notes.push(format!("its ELF headers: {error}")),
    };
    for section in &found {
        if let Err(error) = file.seek(SeekFrom::Start(section.offset)) {
            looked.notes.push(format!("{}: {error}", section.name));
            continue;
        }
        images((&mut *file).take(section.size), device, section.loaded(), looked);
    }
}

/// Fat binaries one after the other. What a driver is not given counts apart.
fn images(source: impl Read, device: u32, loaded: bool, looked: &mut Looked) {
    let mut coverage = Coverage::new(device);
    let mut unit = None;
    let end = |coverage: &mut Coverage, looked: &mut Looked| {
        let kernels = coverage.unit();
        if loaded {
            looked.kernels.extend(kernels);
        } else {
            looked.unlinked += kernels.len();
        }
    };
    for image in Images::new(BufReader::new(source)) {
        let image = match image {
            Ok(image) => image,
            Err(error) => {
                looked.notes.push(format!("fat binary: {:#}", anyhow::Error::new(error)));
                break;
            }
        };
        if unit.replace(image.unit).is_some_and(|before| before != image.unit) {
            end(&mut coverage, looked);
        }
        if loaded {
            *looked.images.entry((image.arch, image.content == Content::Ptx)).or_default() += 1;
        }
        if let Err(reason) = coverage.image(&image) {
            looked
                .notes
                .push(format!("the image at byte {} of its fat binaries: {reason}", image.at));
        }
    }
    end(&mut coverage, looked);
    looked.units += unit.map_or(0, |last| last + 1);
}

/// A cubin by itself.
fn cubin(file: &mut File, length: u64, device: u32, looked: &mut Looked) {
    let read = whole(file, length, MAX_IMAGE).and_then(|bytes| Ok(Cubin::read(&bytes)?));
    match read {
        Ok(cubin) => {
            let arch = cubin.arch;
            looked.images.insert((arch, false), 1);
            let mut coverage = Coverage::new(device);
            if cubin.relocatable {
                looked.unlinked += cubin.kernels.len();
            } else {
                coverage.cubin(cubin, arch);
            }
            looked.kernels = coverage.unit();
        }
        Err(error) => looked.notes.push(format!("cubin: {error:#}")),
    }
}

/// PTX by itself.
fn ptx(file: &mut File, length: u64, device: u32, looked: &mut Looked) -> Result<()> {
    let mut coverage = Coverage::new(device);
    let text = String::from_utf8(whole(file, length, MAX_TEXT as u64)?);
    let read = text.map_err(|error| error.to_string()).and_then(|text| {
        let arch = coverage.text(&text)?;
        looked.images.insert((arch, true), 1);
        Ok(())
    });
    match read {
        Ok(()) => looked.kernels = coverage.unit(),
        Err(reason) => looked.notes.push(format!("PTX: {reason}")),
    }
    Ok(())
}

fn whole(file: &mut File, length: u64, most: u64) -> Result<Vec<u8>> {
    if length > most {
        bail!("{length} bytes; at most {most}");
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is said of each way.
fn meaning(way: Way) -> &'static str {
    match way {
        Way::Ptx => "spliced as PTX, which the driver compiles",
        Way::PtxInCubin => "spliced as the PTX that its machine code carries (-lineinfo)",
        Way::MachineCode => "machine code alone: not by PTX",
        Way::NotForDevice => "no image of it runs on this device",
    }
}

/// How many kernels of all files are reached so.
fn total(looked: &[Looked], way: Way) -> usize {
    looked.iter().map(|one| one.count(way)).sum()
}

fn page(looked: &[Looked], without: usize, options: &Options) -> Screen {
    let mut screen = terminal::screen(|name| std::env::var_os(name));
    let all: usize = looked.iter().map(|one| one.kernels.len()).sum();
    let files = looked.len();
    screen.bold(format_args!("{all} kernels in {files} files, on {}", options.device)).end();
    if without > 0 {
        screen.dim(format_args!("{without} other files hold no device code")).end();
    }
    for way in Way::ALL {
        screen.line(format_args!(
            "{:>8}  {:<16}{}",
            total(looked, way),
            way.word().replace('_', " "),
            meaning(way)
        ));
    }
    let older = looked.iter().flat_map(|one| &one.kernels).filter(|k| k.older()).count();
    if older > 0 {
        screen.line(format_args!(
            "{older} of those that are spliced as PTX have newer machine code, which the driver loads without a \
             probe: compare a probe's cost with the PTX that was not spliced"
        ));
    }
    for one in looked {
        screen.end().bold(&one.name).end();
        screen.block("  ", about(one));
        for note in &one.notes {
            screen.line(format_args!("  not read: {note}"));
        }
        for (kernel, names) in listed(one, options) {
            let way = kernel.way.word().replace('_', " ");
            screen.line(format_args!("  {way:<16}{}", names.readable()));
        }
    }
    screen
}

/// The images and kernels of a file.
fn about(one: &Looked) -> String {
    let mut out = String::new();
    let many = |name: &str, count: usize| match count {
        0 => String::new(),
        1 => format!("1 {name}"),
        n => format!("{n} {}", if name == "fat binary" { "fat binaries" } else { "kernels" }),
    };
    let images = |ptx: bool| -> Vec<String> {
        let of = one.images.iter().filter(|((_, is), _)| *is == ptx);
        of.map(|((arch, _), count)| match count {
            1 => arch.to_string(),
            n => format!("{n}x {arch}"),
        })
        .collect()
    };
    for (what, images) in [("PTX", images(true)), ("machine code", images(false))] {
        if !images.is_empty() {
            let _ = writeln!(out, "{what} for {}", images.join(", "));
        }
    }
    let by_way: Vec<String> = Way::ALL
        .into_iter()
        .filter(|way| one.count(*way) > 0)
        .map(|way| format!("{} {}", one.count(way), way.word().replace('_', " ")))
        .collect();
    let units = if one.units > 0 {
        format!(" in {}", many("fat binary", one.units))
    } else {
        String::new()
    };
    if !by_way.is_empty() {
        let _ =
            writeln!(out, "{}{units}: {}", many("kernel", one.kernels.len()), by_way.join(", "));
    }
    if one.unlinked > 0 {
        let _ =
            writeln!(out, "{} not linked, which no driver is given", many("kernel", one.unlinked));
    }
    out
}

/// The kernels of a file that were asked for.
fn listed<'a>(
    one: &'a Looked,
    options: &'a Options,
) -> impl Iterator<Item = (&'a Found, Names)> + use<'a> {
    one.kernels
        .iter()
        .map(|kernel| (kernel, Names::new(&kernel.name)))
        .filter(|(_, names)| options.kernels.as_ref().is_some_and(|like| names.matches(like)))
}

fn document(looked: &[Looked], without: usize, options: &Options) -> Value {
    let counts = |count: &dyn Fn(Way) -> usize| -> Value {
        Way::ALL.into_iter().map(|way| (way.word().to_owned(), json!(count(way)))).collect()
    };
    let files: Vec<Value> = looked
        .iter()
        .map(|one| {
            let images: Vec<Value> = one
                .images
                .iter()
                .map(|((arch, ptx), count)| {
                    let content = if *ptx { "ptx" } else { "cubin" };
                    json!({ "content": content, "arch": arch.to_string(), "count": count })
                })
                .collect();
            let mut file = json!({
                "file": one.name,
                "fat_binaries": one.units,
                "images": images,
                "kernels": one.kernels.len(),
                "reached": counts(&|way| one.count(way)),
                "not_linked": one.unlinked,
                "not_read": one.notes,
            });
            if options.kernels.is_some() {
                let kernels = listed(one, options).map(|(kernel, names)| {
                    json!({
                        "name": kernel.name,
                        "readable": names.readable(),
                        "reached": kernel.way.word(),
                        "ptx": kernel.ptx.map(|arch| arch.to_string()),
                        "machine_code": kernel.machine.map(|arch| arch.to_string()),
                        "older_ptx": kernel.older(),
                    })
                });
                file["list"] = kernels.collect();
            }
            file
        })
        .collect();
    json!({
        "device": options.device.to_string(),
        "kernels": looked.iter().map(|one| one.kernels.len()).sum::<usize>(),
        "reached": counts(&|way| total(looked, way)),
        "files_without_device_code": without,
        "files": files,
    })
}
