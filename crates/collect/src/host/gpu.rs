//! What this host allows to be recorded of its NVIDIA GPUs.
//!
//! [`gather`] gathers facts, and [`checks`] turns them into checks without touching the host, so that
//! tests can describe any host. Where there is no GPU that is one line, not a list of what is missing.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode;
use nvml_wrapper::error::NvmlError;

use super::Check;
use crate::probes::nvml;
use crate::sys;

/// How long NVML may take: a call on a GPU that fell off the bus may never return.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Variables by which profilers are loaded into programs.
const INJECTIONS: [&str; 3] =
    ["CUDA_INJECTION64_PATH", "NCCL_PROFILER_PLUGIN", "KINETO_USE_DAEMON"];

/// All that the checks need.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// The line of /proc/driver/nvidia/version that names the module.
    driver: Option<String>,
    /// Whether there are signs of a GPU: its driver, its device file, or the user's word.
    expected: bool,
    nvml: NvmlAnswer,
    cupti: Vec<Library>,
    nccl: Vec<Library>,
    /// Whether the driver lets only administrators read hardware counters.
    admin_only: Option<bool>,
    /// Whether we are an administrator.
    admin: bool,
    /// Of [`INJECTIONS`], those that are set.
    injections: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default)]
enum NvmlAnswer {
    #[default]
    NotAsked,
    /// Why not.
    Fails(String),
    Hangs,
    Answers {
        driver: String,
        gpus: Vec<Card>,
    },
}

#[derive(Clone, Debug)]
struct Card {
    name: String,
    split: bool,
    virtual_: Option<GpuVirtualizationMode>,
}

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Library {
    path: PathBuf,
    /// Why this folder was searched.
    place: &'static str,
}

/// The checks of this host.
pub(super) fn checks_of_this_host() -> Vec<Check> {
    checks(&gather())
}

fn gather() -> Facts {
    let expected = nvml::is_expected();
    if !expected {
        return Facts::default();
    }
    let driver = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let params = fs::read_to_string("/proc/driver/nvidia/params").unwrap_or_default();
    let places = places();
    let set = |name: &&str| Some(((*name).to_owned(), env::var(name).ok()?));
    Facts {
        driver: driver.as_deref().and_then(|text| Some(text.lines().next()?.to_owned())),
        expected,
        nvml: ask_nvml(),
        cupti: libraries(&places, "libcupti.so"),
        nccl: libraries(&places, "libnccl.so"),
        admin_only: admin_only(&params),
        admin: super::has_capability(&super::read("/proc/self/status"), "CAP_SYS_ADMIN"),
        injections: INJECTIONS.iter().filter_map(set).filter(|(_, v)| !v.is_empty()).collect(),
    }
}

/// Asks NVML for its GPUs, and waits for [`TIMEOUT`] at most.
fn ask_nvml() -> NvmlAnswer {
    let (sender, answer) = mpsc::channel();
    let ask = move || {
        sys::drop_capabilities();
        let answer = list_gpus().unwrap_or_else(|error| NvmlAnswer::Fails(error.to_string()));
        // The receiver is gone if the timeout is over.
        let _ = sender.send(answer);
    };
    match std::thread::Builder::new().name("gpuwhy-nvml".into()).spawn(ask) {
        Ok(_) => answer.recv_timeout(TIMEOUT).unwrap_or(NvmlAnswer::Hangs),
        Err(error) => NvmlAnswer::Fails(error.to_string()),
    }
}

fn list_gpus() -> Result<NvmlAnswer, NvmlError> {
    let nvml = nvml::open(&nvml::libraries())?;
    let gpus = (0..nvml.device_count()?)
        .map(|i| {
            let device = nvml.device_by_index(i);
            let device = device.as_ref();
            Card {
                name: match device.map(|d| d.name()) {
                    Ok(Ok(name)) => name,
                    Ok(Err(error)) => format!("({error})"),
                    Err(error) => format!("({error})"),
                },
                split: device.is_ok_and(|d| d.mig_mode().is_ok_and(|mode| mode.current == 1)),
                virtual_: device.ok().and_then(|d| d.virtualization_mode().ok()),
            }
        })
        .collect();
    Ok(NvmlAnswer::Answers { driver: nvml.sys_driver_version()?, gpus })
}

/// The value of RmProfilingAdminOnly.
fn admin_only(params: &str) -> Option<bool> {
    let value = params.lines().find_map(|line| line.strip_prefix("RmProfilingAdminOnly:"))?;
    Some(value.trim() != "0")
}

/// Folders in which libraries of CUDA may lie, with the reason.
fn places() -> Vec<(PathBuf, &'static str)> {
    let mut places = Vec::new();
    let list = |name: &str| -> Vec<PathBuf> {
        env::var_os(name).map(|v| env::split_paths(&v).collect()).unwrap_or_default()
    };
    for folder in list("LD_LIBRARY_PATH") {
        places.push((folder, "LD_LIBRARY_PATH"));
    }
    let arch = env::consts::ARCH;
    for folder in ["/lib64", "/usr/lib64", "/usr/lib", "/usr/local/lib"] {
        places.push((folder.into(), "the system"));
    }
    places.push((format!("/usr/lib/{arch}-linux-gnu").into(), "the system"));
    for conf in children(Path::new("/etc/ld.so.conf.d")) {
        let text = fs::read_to_string(&conf).unwrap_or_default();
        for line in text.lines().filter(|line| line.starts_with('/')) {
            places.push((line.trim().into(), "the system"));
        }
    }
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        for home in list(name) {
            toolkit(&home, &mut places);
        }
    }
    toolkit(Path::new("/usr/local/cuda"), &mut places);
    let python = ["python3", "python"]
        .into_iter()
        .find_map(|name| list("PATH").into_iter().map(|p| p.join(name)).find(|p| p.exists()));
    let own = python.as_deref().and_then(|p| p.parent()?.parent());
    let user = env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    for prefix in own.into_iter().chain(user.as_deref()) {
        wheels(prefix, &mut places);
    }
    places
}

/// Folders of a CUDA toolkit.
fn toolkit(home: &Path, places: &mut Vec<(PathBuf, &'static str)>) {
    let arch = if env::consts::ARCH == "aarch64" { "sbsa" } else { env::consts::ARCH };
    for folder in ["extras/CUPTI/lib64", "lib64"] {
        places.push((home.join(folder), "the CUDA toolkit"));
    }
    places.push((home.join(format!("targets/{arch}-linux/lib")), "the CUDA toolkit"));
}

/// Folders of wheels under the Python that lies in `prefix/bin`.
fn wheels(prefix: &Path, places: &mut Vec<(PathBuf, &'static str)>) {
    for lib in ["lib", "lib64", "local/lib"] {
        for python in children(&prefix.join(lib)) {
            let name = python.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with("python3") {
                continue;
            }
            for packages in ["site-packages", "dist-packages"] {
                for wheel in ["cuda_cupti/lib", "nccl/lib", "cu13/lib"] {
                    places.push((
                        python.join(packages).join("nvidia").join(wheel),
                        "a Python package",
                    ));
                }
            }
        }
    }
}

/// The entries of a folder, by name; none if there is no such folder.
fn children(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Libraries of this name and any version, each file once, by the name that has the full version.
fn libraries(places: &[(PathBuf, &'static str)], name: &str) -> Vec<Library> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (folder, place) in places {
        for path in children(folder) {
            let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let ours = own.strip_prefix(name).is_some_and(|v| v.is_empty() || v.starts_with('.'));
            // A link that leads nowhere is no library.
            let Some(real) = ours.then(|| path.canonicalize().ok()).flatten() else { continue };
            if seen.insert(real.clone()) {
                let real_name = real.file_name().unwrap_or_default().to_string_lossy();
                let path = if real_name.starts_with(name) { real.clone() } else { path };
                found.push(Library { path, place });
            }
        }
    }
    found
}

/// The checks that follow from the facts.
fn checks(facts: &Facts) -> Vec<Check> {
    if !facts.expected {
        return vec![Check {
            name: "NVIDIA GPU".into(),
            ok: true,
            needed: false,
            why_it_matters: "with one, its clocks, its links and the processes on it are recorded",
            found: "none on this host".into(),
            fix: String::new(),
        }];
    }
    let mut checks = vec![driver(facts), nvml_check(&facts.nvml)];
    if let NvmlAnswer::Answers { gpus, .. } = &facts.nvml {
        checks.push(partitions(gpus));
    }
    checks.extend([cupti(&facts.cupti), nccl(&facts.nccl), counters(facts), injection(facts)]);
    checks
}

fn driver(facts: &Facts) -> Check {
    // In WSL the driver is the host's and has no file here.
    let answers = matches!(facts.nvml, NvmlAnswer::Answers { .. });
    let ok = facts.driver.is_some() || answers;
    Check {
        name: "NVIDIA driver".into(),
        ok,
        needed: false,
        why_it_matters: "it runs the GPU and counts what throttles it",
        found: match &facts.driver {
            Some(version) => version.clone(),
            None if answers => "not a module of this kernel, but NVML works".into(),
            None => "no /proc/driver/nvidia/version".into(),
        },
        fix: if ok {
            String::new()
        } else {
            "modprobe nvidia; in a container, start it with the NVIDIA runtime (docker --gpus all)"
                .into()
        },
    }
}

fn nvml_check(nvml: &NvmlAnswer) -> Check {
    let (ok, found, fix) = match nvml {
        NvmlAnswer::Answers { driver, gpus } => {
            let names: Vec<&str> = gpus.iter().map(|card| card.name.as_str()).collect();
            let what = match names.len() {
                0 => "no GPU".to_owned(),
                1 => names[0].to_owned(),
                n if names.iter().all(|name| *name == names[0]) => format!("{n} x {}", names[0]),
                _ => names.join(", "),
            };
            (!gpus.is_empty(), format!("driver {driver}, {what}"), "give this process a GPU")
        }
        NvmlAnswer::Hangs => (
            false,
            format!("no answer within {} s", TIMEOUT.as_secs()),
            "search the kernel's log for `NVRM: Xid`; a GPU that fell off the bus needs a reset or a \
             reboot",
        ),
        NvmlAnswer::Fails(why) if why.contains("mismatch") => (
            false,
            why.clone(),
            "the driver was updated while it was loaded: reboot, or unload the nvidia modules",
        ),
        NvmlAnswer::Fails(why) => (
            false,
            why.clone(),
            "install the driver's libraries (libnvidia-ml.so.1), in a container with \
             NVIDIA_DRIVER_CAPABILITIES=utility,compute; GPUWHY_NVML may name a library in another \
             place",
        ),
        NvmlAnswer::NotAsked => (false, "not asked".into(), "run `gpuwhy doctor` again"),
    };
    Check {
        name: "NVML".into(),
        ok,
        needed: false,
        why_it_matters: "it reads clocks, throttling, power, links, errors and processes of the GPU",
        found,
        fix: if ok { String::new() } else { fix.into() },
    }
}

fn partitions(gpus: &[Card]) -> Check {
    let mut found = Vec::new();
    for (i, card) in gpus.iter().enumerate() {
        if card.split {
            found.push(format!("gpu {i} is split (MIG)"));
        }
        match card.virtual_ {
            Some(GpuVirtualizationMode::Vgpu) => found.push(format!("gpu {i} is a virtual one")),
            Some(GpuVirtualizationMode::PassThrough) => {
                found.push(format!("gpu {i} is passed through to this machine"));
            }
            Some(GpuVirtualizationMode::HostVgpu) => {
                found.push(format!("gpu {i} hosts virtual GPUs"));
            }
            _ => {}
        }
    }
    Check {
        name: "GPU partitions".into(),
        ok: true,
        needed: false,
        why_it_matters: "a slice or a virtual GPU shares clocks and memory with others on the same GPU",
        found: if found.is_empty() { "whole GPUs".into() } else { found.join(", ") },
        fix: String::new(),
    }
}

fn list(libraries: &[Library]) -> String {
    let mut list: Vec<String> = libraries
        .iter()
        .take(4)
        .map(|library| format!("{} ({})", library.path.display(), library.place))
        .collect();
    if libraries.len() > 4 {
        list.push(format!("and {} more", libraries.len() - 4));
    }
    list.join(", ")
}

fn cupti(found: &[Library]) -> Check {
    let ok = !found.is_empty();
    Check {
        name: "CUPTI".into(),
        ok,
        needed: false,
        why_it_matters: "kernels and copies of unmodified programs are recorded by it",
        found: if ok { list(found) } else { "no libcupti.so".into() },
        fix: if ok {
            String::new()
        } else {
            "pip install nvidia-cuda-cupti-cu12 (nvidia-cuda-cupti for CUDA 13) where the program \
             runs, or install the CUDA toolkit and set CUDA_HOME"
                .into()
        },
    }
}

fn nccl(found: &[Library]) -> Check {
    let versions: BTreeSet<&str> = found
        .iter()
        .filter_map(|library| library.path.file_name()?.to_str()?.strip_prefix("libnccl.so."))
        .filter(|version| version.contains('.'))
        .collect();
    let version = match versions.len() {
        0 => String::new(),
        _ => format!("{}: ", versions.into_iter().collect::<Vec<_>>().join(" and ")),
    };
    Check {
        name: "NCCL".into(),
        ok: true,
        needed: false,
        why_it_matters: "collectives between GPUs are recorded by its profiler plug-in",
        found: match found {
            [] => "no libnccl.so; programs on one GPU do not need it".into(),
            found => format!("{version}{}", list(found)),
        },
        fix: String::new(),
    }
}

fn counters(facts: &Facts) -> Check {
    let ok = facts.admin_only != Some(true) || facts.admin;
    Check {
        name: "GPU hardware counters".into(),
        ok,
        needed: false,
        why_it_matters: "profilers that count within kernels need them; times of kernels do not",
        found: match (facts.admin_only, facts.admin) {
            (Some(true), true) => "for administrators, which we are".into(),
            (Some(true), false) => "for administrators only (RmProfilingAdminOnly: 1)".into(),
            (Some(false), _) => "for all users".into(),
            (None, _) => "the driver does not say".into(),
        },
        fix: if ok {
            String::new()
        } else {
            "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in a file of /etc/modprobe.d, \
             and reboot"
                .into()
        },
    }
}

fn injection(facts: &Facts) -> Check {
    let foreign: Vec<String> = facts
        .injections
        .iter()
        .filter(|(_, value)| !value.contains("gpuwhy"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let ok = foreign.is_empty();
    Check {
        name: "other profilers".into(),
        ok,
        needed: false,
        why_it_matters: "CUPTI serves one profiler in a process; a second one records nothing",
        found: if ok { "none set in the environment".into() } else { foreign.join(" ") },
        fix: if ok {
            String::new()
        } else {
            "unset these for the programs that gpuwhy is to record".into()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str) -> Card {
        Card { name: name.into(), split: false, virtual_: Some(GpuVirtualizationMode::Bare) }
    }

    /// A host on which everything is as it should be.
    fn healthy() -> Facts {
        Facts {
            driver: Some("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07".into()),
            expected: true,
            nvml: NvmlAnswer::Answers {
                driver: "580.82.07".into(),
                gpus: vec![card("NVIDIA H100 80GB HBM3"); 8],
            },
            cupti: vec![Library {
                path: "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.2025.3.1".into(),
                place: "the CUDA toolkit",
            }],
            nccl: vec![Library {
                path: "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7".into(),
                place: "the system",
            }],
            admin_only: Some(false),
            admin: false,
            injections: Vec::new(),
        }
    }

    /// `ok name: found` of each check.
    fn lines(facts: &Facts) -> String {
        let line = |c: &Check| {
            assert!(!c.needed && !c.why_it_matters.is_empty(), "{}", c.name);
            assert_eq!(c.ok, c.fix.is_empty(), "{}", c.name);
            let mark = if c.ok { "ok" } else { "MISS" };
            format!("{mark} {}: {}\n", c.name, c.found)
        };
        checks(facts).iter().map(line).collect()
    }

    #[test]
    fn a_host_without_a_gpu_has_one_line() {
        assert_eq!(lines(&Facts::default()), "ok NVIDIA GPU: none on this host\n");
    }

    #[test]
    fn a_healthy_host_has_nothing_to_fix() {
        let expected = "\
ok NVIDIA driver: NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07
ok NVML: driver 580.82.07, 8 x NVIDIA H100 80GB HBM3
ok GPU partitions: whole GPUs
ok CUPTI: /usr/local/cuda/extras/CUPTI/lib64/libcupti.so.2025.3.1 (the CUDA toolkit)
ok NCCL: 2.27.7: /usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7 (the system)
ok GPU hardware counters: for all users
ok other profilers: none set in the environment
";
        assert_eq!(lines(&healthy()), expected);
    }

    #[test]
    fn the_fix_for_a_container_without_the_libraries_says_how_to_get_them() {
        let facts = Facts {
            nvml: NvmlAnswer::Fails("libnvidia-ml.so.1: cannot open shared object file".into()),
            cupti: Vec::new(),
            nccl: Vec::new(),
            ..healthy()
        };
        let text = lines(&facts);
        assert!(text.contains("MISS NVML: libnvidia-ml.so.1: cannot open"), "{text}");
        assert!(text.contains("MISS CUPTI: no libcupti.so\nok NCCL: no libnccl.so"), "{text}");
        assert!(!text.contains("partitions"), "{text}");
        let fix = &checks(&facts)[1].fix;
        assert!(fix.contains("NVIDIA_DRIVER_CAPABILITIES=utility"), "{fix}");
    }

    #[test]
    fn a_gpu_that_hangs_and_a_driver_that_was_updated_have_different_fixes() {
        let fix = |nvml| checks(&Facts { nvml, ..healthy() })[1].fix.clone();
        assert!(fix(NvmlAnswer::Hangs).contains("NVRM: Xid"));
        let why = NvmlError::LibRmVersionMismatch.to_string();
        assert!(fix(NvmlAnswer::Fails(why)).contains("reboot"));
    }

    #[test]
    fn slices_and_virtual_gpus_are_listed() {
        let mut gpus = vec![card("A"), card("B"), card("C")];
        gpus[0].split = true;
        gpus[1].virtual_ = Some(GpuVirtualizationMode::Vgpu);
        let facts =
            Facts { nvml: NvmlAnswer::Answers { driver: "580.1".into(), gpus }, ..healthy() };
        let text = lines(&facts);
        assert!(text.contains("ok NVML: driver 580.1, A, B, C\n"), "{text}");
        assert!(text.contains("ok GPU partitions: gpu 0 is split (MIG), gpu 1 is a virtual one\n"));
    }

    #[test]
    fn counters_that_only_root_may_read_are_missing_for_other_users() {
        let of = |params: &str, admin| {
            let facts = Facts { admin_only: admin_only(params), admin, ..healthy() };
            counters(&facts).ok
        };
        let params = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n";
        assert!(!of(params, false) && of(params, true));
        assert!(of("RmProfilingAdminOnly: 0\n", false) && of("", false));
    }

    #[test]
    fn another_profiler_in_the_environment_is_listed_and_our_own_is_not() {
        let with = |name: &str, value: &str| {
            let injections = vec![(name.to_owned(), value.to_owned())];
            injection(&Facts { injections, ..healthy() })
        };
        let other = with("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so");
        assert!(!other.ok && other.found.starts_with("CUDA_INJECTION64_PATH=/opt/nsys"));
        assert!(with("NCCL_PROFILER_PLUGIN", "/usr/lib/libgpuwhy_inject.so").ok);
    }

    #[test]
    fn libraries_are_found_once_and_by_their_version() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |path: &str| {
            let folder = dir.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        let toolkit_folder = folder("cuda/extras/CUPTI/lib64");
        fs::write(toolkit_folder.join("libcupti.so.2025.1.0"), "").unwrap();
        std::os::unix::fs::symlink("libcupti.so.2025.1.0", toolkit_folder.join("libcupti.so.12"))
            .unwrap();
        std::os::unix::fs::symlink("gone.so", toolkit_folder.join("libcupti.so.11")).unwrap();
        let wheel = folder("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
        fs::write(wheel.join("libcupti.so.13"), "").unwrap();
        fs::write(wheel.join("libcupti_static.a"), "").unwrap();
        let nccl_folder = folder("venv/lib/python3.12/site-packages/nvidia/nccl/lib");
        fs::write(nccl_folder.join("libnccl.so.2"), "").unwrap();
        let mut places = Vec::new();
        toolkit(&dir.path().join("cuda"), &mut places);
        wheels(&dir.path().join("venv"), &mut places);
        let found = |name| -> Vec<String> {
            let name_of = |l: &Library| l.path.file_name().unwrap().to_string_lossy().into_owned();
            libraries(&places, name).iter().map(|l| format!("{} {}", name_of(l), l.place)).collect()
        };
        assert_eq!(
            found("libcupti.so"),
            ["libcupti.so.2025.1.0 the CUDA toolkit", "libcupti.so.13 a Python package"]
        );
        assert_eq!(found("libnccl.so"), ["libnccl.so.2 a Python package"]);
    }
}
