//! What a report holds of who it is, read from its tables.

use std::collections::{BTreeMap, BTreeSet};

use gpuwhy_schema::Name;

use super::identity::{Evidence, rank_of_thread};
use super::ids::{pid_of, process_of};
use super::report::Report;
use super::strings::name_of;
use crate::Result;

impl Report {
    /// Reads what the report holds of who it is.
    pub(super) fn read_evidence(&self) -> Result<Evidence> {
        let mut found = Evidence::default();
        let rank = |n: i64| u32::try_from(n).ok();
        self.each("MPI_RANKS", ["globalTid", "rank"], |_, [thread, number]| {
            if let (Some(thread), Some(rank)) = (thread.int(), number.int().and_then(rank)) {
                found.mpi.insert(pid_of(thread), rank);
            }
            Ok(())
        })?;
        let named = |(thread, name): (&i64, &Name)| Some((pid_of(*thread), rank_of_thread(name)?));
        found.threads = self.threads.iter().filter_map(named).collect();
        self.each("META_DATA_CAPTURE", ["name", "value"], |_, [name, value]| {
            let (Some(name), Some(value)) = (name.text(), value.text()) else { return Ok(()) };
            if name.starts_with("PROCESS_")
                && name.ends_with(":ENVIRONMENT_VARIABLE")
                && let Some((name, value)) = value.split_once('=')
            {
                found.variable(name, value);
            }
            if name == "DEVICE_DISPLAY_NAME" && !value.is_empty() && !value.contains(['(', ' ']) {
                found.display_name = Some(value.to_owned());
            }
            Ok(())
        })?;
        self.each("TARGET_INFO_SYSTEM_ENV", ["name", "value"], |_, [name, value]| {
            if let (Some("DeviceEnvironment"), Some(value)) = (name.text(), value.text()) {
                let pairs = value.split([';', '\n', '\0']).filter_map(|pair| pair.split_once('='));
                pairs.for_each(|(name, value)| found.variable(name, value));
            }
            Ok(())
        })?;
        self.each("TARGET_INFO_CUDA_CONTEXT_INFO", ["processId"], |_, [process]| {
            found.contexts.extend(process.int());
            Ok(())
        })?;
        Ok(found)
    }
}

/// The most programs that a report may say were launched.
const PROGRAMS: usize = 1 << 10;
/// What `nsys` runs in a new process, which then becomes the program that is to be profiled.
const LAUNCHER: &str = "nsys-launcher";

impl Report {
    /// Gives processes the name of the program that `nsys` launched where the report lists them under that of its
    /// launcher: it took the name of the process before that had become the program. Such a process used a GPU,
    /// or its output was captured; the launcher itself does neither.
    pub(super) fn name_launched(&mut self) -> Result<()> {
        let launchers: BTreeSet<i64> = self
            .processes
            .iter()
            .filter(|(_, path)| path.rsplit('/').next() == Some(LAUNCHER))
            .map(|(process, _)| *process)
            .collect();
        if launchers.is_empty() {
            return Ok(());
        }
        let Some(program) = self.launched_program()? else { return Ok(()) };
        let mut launched: BTreeSet<i64> = BTreeSet::new();
        self.each("ProcessStreams", ["globalPid"], |_, [process]| {
            launched.extend(process.int().map(process_of).filter(|p| launchers.contains(p)));
            Ok(())
        })?;
        self.each("TARGET_INFO_CUDA_CONTEXT_INFO", ["processId"], |_, [pid]| {
            launched.extend(launchers.iter().filter(|p| Some(pid_of(**p)) == pid.int()));
            Ok(())
        })?;
        self.processes.extend(launched.into_iter().map(|process| (process, program.clone())));
        Ok(())
    }

    /// The program that `nsys` was told to launch; `None` if it was told of none, or of several.
    fn launched_program(&self) -> Result<Option<Name>> {
        let mut commands: BTreeMap<String, Name> = BTreeMap::new();
        let mut attached: BTreeSet<String> = BTreeSet::new();
        self.each("META_DATA_CAPTURE", ["name", "value"], |_, [name, value]| {
            let (Some(name), Some(value)) = (name.text(), value.text()) else { return Ok(()) };
            match name.split_once(':') {
                Some((of, "COMMAND"))
                    if of.starts_with("PROCESS_") && commands.len() < PROGRAMS =>
                {
                    let path = value.trim().trim_matches('"');
                    commands.insert(of.to_owned(), name_of(path));
                }
                Some((of, "HOW_TO_ATTACH"))
                    if value != "LaunchAnother" && attached.len() < PROGRAMS =>
                {
                    attached.insert(of.to_owned());
                }
                _ => {}
            }
            Ok(())
        })?;
        commands.retain(|of, path| !attached.contains(of) && !path.is_empty());
        let mut programs = commands.into_values();
        Ok(programs.next().filter(|program| programs.all(|other| other == *program)))
    }
}
