//! Attaching to functions of programs and libraries: uprobe multi links, which need CAP_BPF and
//! CAP_PERFMON only (Linux 6.6).
//!
//! A probe's object has three programs for the same function: `NAME_session` for both ends of a call
//! in one link, where the kernel has sessions (6.13), and `NAME_entry` with `NAME_return` for two
//! links.

use std::path::Path;

use libbpf_rs::{Link, OpenObject, UprobeMultiOpts};

use super::object::LoadedObject;
use crate::elf::StaticProbe;
use crate::error::CollectError;

/// Functions of one file to attach to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions<'a> {
    /// The only process whose calls are traced; all processes if there is none.
    pub pid: Option<u32>,
    /// The program or library.
    pub binary: &'a Path,
    /// Where in the file each function begins.
    pub offsets: &'a [usize],
    /// What the BPF program is given at calls of each.
    pub cookies: &'a [u64],
    /// What error messages call them.
    pub description: &'a str,
}

/// Loads only the program for sessions, or only the other two.
pub(crate) fn select_programs(object: &mut OpenObject, session: bool) {
    for mut program in object.progs_mut() {
        let is_session = program.name().to_string_lossy().ends_with("_session");
        program.set_autoload(is_session == session);
    }
}

/// Attaches the programs that [`select_programs`] left to these functions.
///
/// # Errors
/// The kernel refuses: it is too old, or the process has ended.
pub(crate) fn attach(
    loaded: &LoadedObject,
    functions: &Functions<'_>,
) -> Result<Vec<Link>, CollectError> {
    let pid = functions.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1);
    let mut links = Vec::new();
    for program in loaded.object.progs_mut().filter(|program| program.autoload()) {
        let name = program.name().to_string_lossy().into_owned();
        let options = UprobeMultiOpts {
            offsets: functions.offsets.to_vec(),
            cookies: functions.cookies.to_vec(),
            retprobe: name.ends_with("_return"),
            session: name.ends_with("_session"),
            ..UprobeMultiOpts::default()
        };
        let link = program
            .attach_uprobe_multi_with_opts(pid, functions.binary, "", options)
            .map_err(|source| CollectError::Attach {
                probe: loaded.probe,
                target: functions.description.to_owned(),
                source,
            })?;
        links.push(link);
    }
    Ok(links)
}

/// Attaches a program to a static probe of a file, in all processes. A counter in their memory tells them that
/// somebody listens, and the kernel counts there.
///
/// # Errors
/// The object has no such program, or the kernel refuses.
pub(crate) fn attach_static(
    loaded: &LoadedObject,
    program: &str,
    binary: &Path,
    probe: &StaticProbe,
) -> Result<Link, CollectError> {
    let refused = |source| CollectError::Attach {
        probe: loaded.probe,
        target: format!("`{}` of `{}`", probe.name, binary.display()),
        source,
    };
    let missing = || libbpf_rs::Error::from(std::io::Error::from(std::io::ErrorKind::NotFound));
    let found = loaded.object.progs_mut().find(|of| of.name().to_string_lossy() == program);
    let options = UprobeMultiOpts {
        offsets: probe.places.iter().map(|place| place.code).collect(),
        ref_ctr_offsets: probe.places.iter().map(|place| place.counter).collect(),
        ..UprobeMultiOpts::default()
    };
    let found = found.ok_or_else(|| refused(missing()))?;
    found.attach_uprobe_multi_with_opts(-1, binary, "", options).map_err(refused)
}
