//! What a report holds of who it is, read from its tables.

use gpuwhy_schema::Name;

use super::identity::{Evidence, rank_of_thread};
use super::ids::pid_of;
use super::report::Report;
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
