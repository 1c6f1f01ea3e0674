//! `gpuwhy probe run -- COMMAND`: programs that know nothing of probes, over a driver that executes their kernels
//! (`gpuwhy-standin`). What they print must be what they print alone, and the maps must hold what was launched.

mod code;
#[path = "../common/mod.rs"]
mod common;
mod host;
mod launches;
mod policies;
mod rings;
mod shared;
mod stealing;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{folder, gpuwhy, said, skeleton, text};
use gpuwhy_gpubpf::image::{Content, Images};
use gpuwhy_testkit::gpu;
use serde_json::Value;

/// A folder with the driver, a machine, a probe and the programs of `tests/programs`.
struct Place {
    _keep: tempfile::TempDir,
    dir: PathBuf,
    object: PathBuf,
}

/// The newest of what cargo has built for this test.
fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let all = program.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let found = all.filter(|path| path.exists());
    let newest = found.max_by_key(|path| path.metadata().and_then(|meta| meta.modified()).ok());
    newest.unwrap_or_else(|| panic!("cargo has built no {name}"))
}

fn compile(dir: &Path, name: &str, source: &str, options: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let mut command = Command::new("cc");
    command.current_dir(dir).args(["-O1", "-Wall", "-Werror", "-o", name]).arg(&source);
    let output = command.args(options).output().expect("a C compiler");
    assert!(output.status.success(), "{}", said(&output));
}

/// NVIDIA's own files with two kernels, `copy` and `zero`.
fn image(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpubpf/tests/fatbin").join(name)
}

const COPY: &str = "_Z4copyPKfPf";

impl Place {
    fn new() -> Place {
        let (keep, dir) = folder();
        gpu::link_libraries(&dir.join("lib"), &built("libgpuwhy_standin.so")).unwrap();
        fs::create_dir(dir.join("machine")).unwrap();
        compile(&dir, "loads", "loads.c", &["-ldl"]);
        compile(&dir, "queues", "queues.c", &["-ldl"]);
        compile(&dir, "linked", "loads.c", &["-DLINKED", "-Llib", "-lcuda", "-ldl"]);
        let object = skeleton(&dir, "counts");
        Place { _keep: keep, dir, object }
    }

    /// With another probe of `probe new`.
    fn with(tool: &str) -> Place {
        let mut place = Place::new();
        place.object = skeleton(&place.dir, tool);
        place
    }

    /// A program of `tests/programs`, compiled with these options beside the usual ones.
    fn compiled(&self, name: &str, options: &[&str]) -> PathBuf {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let object = self.dir.join(format!("{name}.o"));
        let output = Command::new("clang")
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-c"])
            .args(options)
            .arg("-I")
            .arg(here.join("../gpubpf/include"))
            .arg(here.join("tests/programs").join(format!("{name}.bpf.c")))
            .arg("-o")
            .arg(&object)
            .output()
            .expect("clang");
        assert!(output.status.success(), "{}", said(&output));
        object
    }

    /// A command's environment: the driver and two GPUs.
    fn set(&self, command: &mut Command) {
        command
            .current_dir(&self.dir)
            .env("LD_LIBRARY_PATH", self.dir.join("lib"))
            .env("GPUWHY_STANDIN", self.dir.join("machine"))
            .env("GPUWHY_STANDIN_GPUS", "2")
            .env("GPUWHY_STANDIN_EXECUTES", "1")
            .env("GPUWHY_INTERPOSE", built("libgpuwhy_interpose.so"))
            .env("XDG_CACHE_HOME", self.dir.join("cache"));
    }

    fn alone(&self, words: &[&str]) -> Output {
        let mut command = Command::new(words[0]);
        self.set(&mut command);
        command.args(&words[1..]).output().unwrap()
    }

    fn probed(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
        self.set(&mut command);
        command.args(["run", "--object", text(&self.object), "--output", "found.json"]);
        command.args(options).arg("--").args(words);
        command
    }

    /// The program, with the options and no probe.
    fn stealing(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
        self.set(&mut command);
        command.args(["run", "--output", "found.json"]).args(options).arg("--").args(words);
        command
    }

    /// What was found, if the program printed and ended as it does alone.
    fn found(&self, options: &[&str], words: &[&str]) -> (Value, String) {
        let alone = self.alone(words);
        let output = self.probed(options, words).output().unwrap();
        let of = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(of(&output), of(&alone), "{words:?}: {}", said(&output));
        assert_eq!(output.status.code(), alone.status.code().or(Some(137)), "{}", said(&output));
        let found = fs::read(self.dir.join("found.json")).unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (serde_json::from_slice(&found).unwrap(), told)
    }
}

/// Warps and bytes that the probe has counted, summed over SMs and contexts, image by image.
fn counted(found: &Value) -> Vec<[u64; 2]> {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let images = all(&found["images"]);
    images
        .iter()
        .map(|image| {
            let mut counts = [0; 2];
            for map in all(&image["contexts"]).iter().flat_map(|context| all(&context["maps"])) {
                for entry in all(&map["entries"]) {
                    let bytes: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).unwrap();
                    let count = u64::from_le_bytes(bytes.try_into().unwrap());
                    counts[entry["key"][0].as_u64().unwrap() as usize] += count;
                }
            }
            counts
        })
        .collect()
}

/// The value under a key of a map, in the image's only context.
fn number(found: &Value, map: &str, key: u64) -> u64 {
    let maps = found["images"][0]["contexts"][0]["maps"].as_array().unwrap();
    let map = maps.iter().find(|one| one["name"] == map).unwrap();
    let bytes = |value: &Value| -> Vec<u8> { serde_json::from_value(value.clone()).unwrap() };
    let entries = map["entries"].as_array().unwrap();
    let key = (key as u32).to_le_bytes();
    let entry = entries.iter().find(|entry| bytes(&entry["key"]) == key);
    entry.map_or(0, |entry| u64::from_le_bytes(bytes(&entry["bytes"]).try_into().unwrap()))
}

/// A launch has 4 blocks of 2 warps; each thread of `copy` loads 4 bytes.
fn of_launches(launches: u64) -> [u64; 2] {
    [8 * launches, 1024 * launches]
}

/// Each way to the driver, and each function that loads.
#[test]
fn a_probe_counts_in_programs_that_know_nothing_of_it_however_they_come_to_their_driver() {
    let place = Place::new();
    let (ptx, fatbin) = (image("kernels.ptx"), image("zstd.fatbin"));
    let (ptx, fatbin) = (text(&ptx), text(&fatbin));
    for (program, way) in [("./loads", "dlsym"), ("./loads", "asked"), ("./linked", "linked")] {
        for (load, path) in [
            ("module", ptx),
            ("moduleex", ptx),
            ("fatbinary", fatbin),
            ("wrapper", fatbin),
            ("file", fatbin),
            ("library", fatbin),
            ("libraryfile", ptx),
            ("graph", ptx),
            ("link", ptx),
            ("link", fatbin),
            ("linkfile", ptx),
        ] {
            let (found, _) = place.found(&[], &[program, way, load, path, COPY, "1", "3"]);
            assert_eq!(counted(&found), [of_launches(3)], "{way}, {load}: {found:#}");
            assert_eq!(found["images"][0]["contexts"][0]["complete"], true, "{found:#}");
        }
    }
}

/// zstd, LZ4 and none; a cubin that carries its PTX; PTX for a family of devices; text by itself.
#[test]
fn images_of_each_compression_are_reached_and_machine_code_alone_is_told() {
    let place = Place::new();
    let bare = place.dir.join("bare.fatbin");
    fs::write(&bare, uncompressed(&fs::read(image("kernels.ptx")).unwrap())).unwrap();
    let names = ["zstd.fatbin", "lz4.fatbin", "lineinfo.fatbin", "kernels.ptx"];
    for path in names.map(image).iter().chain([&bare]) {
        let (found, told) = place.found(&[], &["./loads", "asked", "library", text(path), COPY]);
        assert_eq!(counted(&found), [of_launches(1)], "{}: {found:#}", path.display());
        assert!(told.contains("copy(float const*, float*): 2 sites"), "{told}");
    }
    // Machine code alone; this driver refuses it as well, as it does without us.
    let cubin = place.dir.join("alone.cubin");
    let fatbin = fs::read(image("zstd.fatbin")).unwrap();
    let mut images = Images::new(fatbin.as_slice()).map(Result::unwrap);
    let machine =
        images.find(|image| image.content == Content::Cubin && image.arch.number == 90).unwrap();
    fs::write(&cubin, machine.bytes).unwrap();
    let (found, told) = place.found(&[], &["./loads", "dlsym", "module", text(&cubin), COPY]);
    assert_eq!(found["images"][0]["probes"], false, "{found:#}");
    assert_eq!(found["images"][0]["ways"]["machine_code"], 2, "{found:#}");
    assert!(told.contains("probes lie in 0 of 1 image "), "{told}");
    assert!(told.contains("1 image: it holds machine code for sm_90 alone"), "{told}");
}

/// A fat binary with one text, as `fatbinary --compress-mode=none` writes it.
fn uncompressed(text: &[u8]) -> Vec<u8> {
    let mut body = text.to_vec();
    body.push(0);
    body.resize(body.len().next_multiple_of(8), 0);
    let mut entry = Vec::new();
    entry.extend([1_u16, 0x101].iter().flat_map(|half| half.to_le_bytes()));
    entry.extend(64_u32.to_le_bytes());
    entry.extend((body.len() as u64).to_le_bytes());
    entry.extend([0_u32, 0].iter().flat_map(|word| word.to_le_bytes()));
    entry.extend([0_u16, 8].iter().flat_map(|half| half.to_le_bytes()));
    entry.extend([80_u32, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    entry.extend([0x11_u64, 0, 0].iter().flat_map(|long| long.to_le_bytes()));
    entry.resize(64, 0);
    let mut all = 0xba55_ed50_u32.to_le_bytes().to_vec();
    all.extend([1_u16, 16].iter().flat_map(|half| half.to_le_bytes()));
    all.extend(((entry.len() + body.len()) as u64).to_le_bytes());
    all.extend(entry);
    all.extend(body);
    all
}

/// Of two links with the same image one is given up.
#[test]
fn what_was_to_be_linked_and_was_not_is_told() {
    let place = Place::new();
    let path = image("zstd.fatbin");
    let (found, told) = place.found(&[], &["./loads", "asked", "unlinked", text(&path), COPY]);
    assert_eq!(counted(&found), [[0, 0], of_launches(1)], "{found:#}");
    assert!(told.contains("probes lie in 1 of 2 images"), "{told}");
    assert!(told.contains("the program did not say what became of it"), "{told}");
}

#[test]
fn each_device_has_maps_of_its_own() {
    let place = Place::new();
    for load in ["library", "module"] {
        let path = image("zstd.fatbin");
        let words = ["./loads", "asked", load, text(&path), COPY, "2", "5"];
        let (found, _) = place.found(&[], &words);
        // A library is one image in two contexts, modules are two images.
        let contexts: Vec<(u64, u64)> = found["images"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|image| image["contexts"].as_array().cloned().unwrap())
            .map(|context| {
                let entries = context["maps"][0]["entries"].as_array().cloned().unwrap();
                let warps = entries.iter().filter(|entry| entry["key"][0] == 0);
                (
                    context["device"].as_u64().unwrap(),
                    warps.map(|e| e["bytes"][0].as_u64().unwrap()).sum(),
                )
            })
            .collect();
        assert_eq!(contexts, [(0, 40), (1, 40)], "{load}: {found:#}");
    }
}

#[test]
fn a_compiled_program_with_several_fat_binaries_and_a_shared_run_time_is_reached() {
    let place = Place::new();
    compile(&place.dir, "lib/libcudart.so", "cudart.c", &["-shared", "-fPIC", "-ldl"]);
    let unit = |name: &str, file: &str| format!("-D{name}=\"{}\"", text(&image(file)));
    let (first, second) = (unit("FIRST", "zstd.fatbin"), unit("SECOND", "lz4.fatbin"));
    compile(&place.dir, "compiled", "compiled.c", &[&first, &second, "-Llib", "-lcudart"]);
    let (found, _) = place.found(&[], &["./compiled"]);
    assert_eq!(counted(&found), [of_launches(1), [1, 0]], "{found:#}");
}

/// NVIDIA's own run time, as far as it goes without a driver of theirs: it asks this one for its functions, and gives up
/// where it looks into tables that nobody documents. By then it has what it was given.
#[test]
fn nvidias_run_time_static_or_shared_takes_our_functions_for_the_drivers() {
    let cache = std::env::var("XDG_CACHE_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cache")));
    let cudart = PathBuf::from(cache.unwrap_or_default()).join("gpuwhy/cudart");
    if !cudart.join("libcudart_static.a").exists() {
        println!("skipped: no run time of NVIDIA's; `scripts/cudart.sh` fetches it");
        return;
    }
    let place = Place::new();
    let link = |name: &str| format!("{}/{name}", text(&cudart));
    let (archive, shared) = (link("libcudart_static.a"), link("libcudart.so.13"));
    compile(&place.dir, "static", "runtime.c", &[&archive, "-ldl", "-lpthread", "-lrt"]);
    compile(
        &place.dir,
        "shared",
        "runtime.c",
        &[&shared, "-ldl", &format!("-Wl,-rpath,{}", text(&cudart))],
    );
    for program in ["./static", "./shared"] {
        let numbers = |preload: Option<PathBuf>| -> Vec<u64> {
            let mut command = Command::new(program);
            place.set(&mut command);
            let output = command.envs(preload.map(|path| ("LD_PRELOAD", path))).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            printed
                .split_whitespace()
                .map(|n| n.parse().unwrap_or_else(|_| panic!("{}", said(&output))))
                .collect()
        };
        let (alone, with) = (numbers(None), numbers(Some(built("libgpuwhy_interpose.so"))));
        println!("{program}: {} addresses of ours, {} of the driver's", with[1], with[2]);
        assert_eq!((alone[0], alone[1]), (with[0], 0), "it comes as far, and has none of ours");
        // Each function that it asks for and that is hooked; some of them it keeps twice.
        assert!(with[1] >= 16 && with[2] >= 40, "{with:?}");
    }
}

/// Whatever ends the program: what was counted until then is there, and what is missing is said.
#[test]
fn what_was_counted_is_there_however_the_program_ends() {
    let place = Place::new();
    let path = image("zstd.fatbin");
    for (end, complete) in [
        ("exit", true),
        ("unload", true),
        ("fork", true),
        ("slow", true),
        ("_exit", false),
        ("kill", false),
    ] {
        for load in ["library", "module"] {
            let words = ["./loads", "dlsym", load, text(&path), COPY, "1", "2", end];
            let (found, told) = place.found(&[], &words);
            let context = &found["images"][0]["contexts"][0];
            assert_eq!(context["complete"], complete, "{end}: {found:#}");
            let never_read = told.contains("never read");
            // A program may also end in the middle of a reading.
            let cut_short = told.contains("without a last reading")
                || told.contains("ended while the maps were read");
            if end == "_exit" {
                // It ended before the first reading, or a little later.
                assert!(never_read != cut_short, "{told}");
            } else {
                assert_eq!(counted(&found), [of_launches(2)], "{end}, {load}: {found:#}");
                assert_eq!(
                    (never_read, cut_short),
                    (false, end == "kill"),
                    "{end}, {load}: {told}"
                );
            }
        }
    }
}

#[test]
fn an_image_that_the_driver_refuses_with_probes_is_loaded_as_it_is() {
    let place = Place::new();
    let path = image("zstd.fatbin");
    for load in ["library", "module", "fatbinary", "wrapper", "file", "libraryfile"] {
        let words = ["./loads", "asked", load, text(&path), COPY];
        let alone = place.alone(&words);
        let output = place
            .probed(&[], &words)
            .env("GPUWHY_STANDIN_REFUSES", "gpuwhy_probe")
            .output()
            .unwrap();
        assert_eq!(output.stdout, alone.stdout, "{}", said(&output));
        assert_eq!(output.status.code(), Some(0));
        let told = said(&output);
        assert!(told.contains("the driver refused it with probes (CUresult 218)"), "{told}");
    }
}

/// The controller is killed, or stands still, while the program waits to load its image.
#[test]
fn a_controller_that_dies_or_hangs_costs_the_program_nothing_but_the_wait() {
    let place = Place::new();
    let path = image("zstd.fatbin");
    let words = ["./loads", "dlsym", "module", text(&path), COPY];
    let alone = place.alone(&words);
    for (signal, least) in [("-KILL", 0), ("-STOP", 300)] {
        let script = format!(
            "echo $PPID; while [ ! -e go ]; do sleep 0.01; done; {}; echo done > ended",
            words.join(" ")
        );
        let mut command = place.probed(&["--wait", "300"], &["sh", "-c", &script]);
        let log = fs::File::create(place.dir.join("log")).unwrap();
        let mut child = command.stdout(log).stderr(Stdio::null()).spawn().unwrap();
        let printed = || fs::read_to_string(place.dir.join("log")).unwrap_or_default();
        wait_until("the command starts", || printed().contains('\n'));
        kill(signal, child.id());
        let begin = Instant::now();
        fs::write(place.dir.join("go"), "").unwrap();
        wait_until("the command ends", || place.dir.join("ended").exists());
        assert!(
            begin.elapsed() >= Duration::from_millis(least),
            "{signal}: it waited {:?}",
            begin.elapsed()
        );
        let printed = printed();
        let (_, rest) = printed.split_once('\n').unwrap();
        assert_eq!(rest, String::from_utf8_lossy(&alone.stdout), "{signal}");
        let _ = child.kill();
        let _ = child.wait();
        for name in ["go", "ended", "log"] {
            fs::remove_file(place.dir.join(name)).unwrap();
        }
    }
}

/// By the shell, which every machine has; the program `kill` is a package of its own.
fn kill(signal: &str, pid: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill {signal} {pid}")]).status().unwrap();
    assert!(sent.success(), "kill {signal} {pid}");
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn images_are_kept_and_a_damaged_or_closed_cache_costs_nothing_but_time() {
    let place = Place::new();
    let path = image("zstd.fatbin");
    let words = ["./loads", "asked", "library", text(&path), COPY];
    let kept = || -> Vec<PathBuf> {
        let dir = fs::read_dir(place.dir.join("cache/gpuwhy/probes"));
        dir.map(|dir| dir.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
    };
    place.found(&["--no-cache"], &words);
    assert!(kept().is_empty());
    place.found(&[], &words);
    let [file] = kept().try_into().unwrap();
    let whole = fs::read(&file).unwrap();
    // What is kept is used: another text in it, whose hash is right, is what the driver gets.
    for damage in [vec![], b"no image at all".to_vec(), whole[..whole.len() / 2].to_vec()] {
        fs::write(&file, &damage).unwrap();
        let (found, _) = place.found(&[], &words);
        assert_eq!(counted(&found), [of_launches(1)]);
        assert_eq!(fs::read(&file).unwrap(), whole, "it is written anew");
    }
    let (found, told) = place.found(&["--cache", "/proc/nowhere"], &words);
    assert_eq!(counted(&found), [of_launches(1)]);
    assert!(told.contains("cannot keep images with probes in `/proc/nowhere`"), "{told}");
    // Another device, another way of splicing: another image.
    place.found(&["--one-warp-in", "2"], &words);
    assert_eq!(kept().len(), 2);
    // Several programs at once write the same file.
    fs::remove_dir_all(place.dir.join("cache")).unwrap();
    let started: Vec<_> = (0..8)
        .map(|_| {
            let mut command = place.probed(&[], &words);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert!(said(&output).contains("probes lie in 1 of 1 image "), "{}", said(&output));
    }
    assert_eq!(kept().len(), 1);
}

#[test]
fn the_command_ends_and_reads_and_prints_as_it_would_alone() {
    let place = Place::new();
    let status = |words: &[&str]| place.probed(&[], words).output().unwrap().status.code();
    assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(status(&["sh", "-c", "kill -TERM $$"]), Some(143));
    assert_eq!(status(&["./no-such-program"]), Some(127));
    assert_eq!(status(&["/etc/passwd"]), Some(126));
    let mut child = place
        .probed(&[], &["tr", "a-z", "A-Z"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"quiet\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"QUIET\n");
    // A signal that is sent to us reaches the command.
    let script = "trap 'echo heard; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let log = fs::File::create(place.dir.join("log")).unwrap();
    let mut child = place.probed(&[], &["sh", "-c", script]).stdout(log).spawn().unwrap();
    let printed = || fs::read_to_string(place.dir.join("log")).unwrap_or_default();
    wait_until("the command starts", || printed() == "ready\n");
    kill("-TERM", child.id());
    assert_eq!((child.wait().unwrap().code(), printed().as_str()), (Some(5), "ready\nheard\n"));
    let output = place.probed(&[], &["true"]).output().unwrap();
    assert!(said(&output).contains("No image was seen"), "{}", said(&output));
}

/// The object alone, in programs that have no GPU code, with and without another one that looks behind itself.
#[test]
fn programs_without_gpu_code_notice_nothing() {
    let place = Place::new();
    compile(&place.dir, "mixed", "mixed.c", &["-ldl"]);
    compile(&place.dir, "libnext.so", "next.c", &["-shared", "-fPIC", "-ldl"]);
    let ours = built("libgpuwhy_interpose.so");
    let next = place.dir.join("libnext.so");
    let run = |preload: &[&Path]| {
        let mut command = Command::new("./mixed");
        place.set(&mut command);
        let all: Vec<&str> = preload.iter().map(|path| text(path)).collect();
        let output = command.env("LD_PRELOAD", all.join(":")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let alone = run(&[]);
    assert!(alone.contains("cuModuleLoadData 0") && alone.contains("parent 1"), "{alone}");
    assert_eq!(run(&[&ours]), alone);
    let with_next = run(&[&next]);
    assert!(with_next.contains("parent 0"), "{with_next}");
    assert_eq!(run(&[&ours, &next]), with_next);
    assert_eq!(run(&[&next, &ours]), with_next);
    for words in [
        ["python3", "-c", "import ctypes; print(ctypes.CDLL(None).getpid() > 0)"],
        ["sh", "-c", "echo shell | cat"],
    ] {
        let mut command = Command::new(words[0]);
        place.set(&mut command);
        let output = command.args(&words[1..]).env("LD_PRELOAD", &ours).output().unwrap();
        assert_eq!(said(&output), said(&place.alone(&words)), "{words:?}");
    }
}

#[test]
fn what_cannot_be_attached_is_refused_before_the_command_starts() {
    let place = Place::new();
    let library = text(&place.dir).to_owned() + "/a place/lib.so";
    let output =
        place.probed(&[], &["touch", "started"]).env("GPUWHY_INTERPOSE", library).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("its path has a space or a colon"), "{}", said(&output));
    let output = gpuwhy(&["probe", "run", "--object", "/nowhere.o", "--", "touch", "started"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot read `/nowhere.o`"), "{}", said(&output));
    assert!(!place.dir.join("started").exists());
}
