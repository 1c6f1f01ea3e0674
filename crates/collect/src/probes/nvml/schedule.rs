//! How long each software runlist of a host of NVIDIA's virtual GPUs had the device, from the log of its scheduler.
//!
//! # What it sees
//! The driver keeps the last 200 times that a runlist was taken off the engine: when that was, how long it had run, and how
//! long in all (`nvmlVgpuSchedulerLogEntry_t` of nvml.h). The totals miss nothing, though the log forgets.
//!
//! # What fools it
//! Which virtual GPU has which runlist is not told. A runlist that has the device all the time is in the log only when it is
//! taken off. **Never run on hardware**: no machine of our tests hosts virtual GPUs.

use std::collections::BTreeMap;

use nvml_wrapper::struct_wrappers::device::{VgpuSchedulerLog, VgpuSchedulerLogEntry};

/// How far the log has been read.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// The time of the newest entry, on the driver's clock, ns; none before the first log.
    newest: Option<u64>,
    /// What each runlist has run in all, ns.
    totals: BTreeMap<u32, u64>,
    policy: Option<(u32, u32)>,
}

impl Schedule {
    /// What each runlist has run since the log before, ns; nothing of the first log, which says what was before. Entries come in
    /// any order, and those without a time are empty.
    pub fn ran(&mut self, entries: &[VgpuSchedulerLogEntry]) -> Vec<(u32, u64)> {
        let before = self.newest;
        let mut ran: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for one in entries.iter().filter(|one| one.timestamp != 0) {
            self.newest = self.newest.max(Some(one.timestamp));
            let (total, since) = ran.entry(one.sw_runlist_id).or_default();
            *total = one.time_run_total.max(*total);
            if before.is_some_and(|before| one.timestamp > before) {
                *since = since.saturating_add(one.time_run);
            }
        }
        // A log that is empty at first is known to be.
        self.newest = self.newest.or(Some(0));
        let mut out = Vec::new();
        for (runlist, (total, since)) in ran {
            let known = self.totals.insert(runlist, total);
            let added = match known {
                Some(known) if known <= total => total - known,
                // Its number was given to another one, or it is new.
                _ => since,
            };
            if before.is_some() {
                out.push((runlist, added));
            }
        }
        out
    }

    /// The policy of the scheduler and its time slice, ns, if they are new.
    pub fn policy(&mut self, log: &VgpuSchedulerLog) -> Option<(&'static str, f64)> {
        let now = (log.scheduler_policy, log.scheduler_params.timeslice);
        if self.policy.replace(now) == Some(now) {
            return None;
        }
        // NVML_VGPU_SCHEDULER_POLICY_* of nvml.h.
        let name = match now.0 {
            1 => "vGPU scheduler: best effort",
            2 => "vGPU scheduler: equal share",
            3 => "vGPU scheduler: fixed share",
            _ => return None,
        };
        Some((name, f64::from(now.1)))
    }
}

#[cfg(test)]
mod tests {
    use nvml_wrapper::struct_wrappers::device::VgpuSchedulerParams;

    use super::*;

    /// Entries: when, which runlist, how long it had run, how long in all.
    fn entries(of: &[(u64, u32, u64, u64)]) -> Vec<VgpuSchedulerLogEntry> {
        let entry =
            |&(timestamp, sw_runlist_id, time_run, time_run_total): &(u64, u32, u64, u64)| {
                VgpuSchedulerLogEntry {
                    timestamp,
                    time_run_total,
                    time_run,
                    sw_runlist_id,
                    target_time_slice: 0,
                    cumulative_preemption_time: 0,
                }
            };
        // The library has room for 200, the rest of which is empty.
        of.iter().chain(&[(0, 0, 0, 0); 3]).map(entry).collect()
    }

    #[test]
    fn totals_say_what_a_runlist_ran_also_where_the_log_has_forgotten_a_part() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.ran(&entries(&[(100, 1, 10, 500), (120, 2, 20, 80)])), []);
        // Of runlist 1 only the last of many is left.
        let log = [(120, 2, 20, 80), (900, 1, 10, 730)];
        assert_eq!(schedule.ran(&entries(&log)), [(1, 230), (2, 0)]);
        assert_eq!(schedule.ran(&entries(&log)), [(1, 0), (2, 0)]);
    }

    #[test]
    fn a_new_runlist_counts_from_its_first_entry_and_one_whose_number_is_used_again_anew() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.ran(&entries(&[])), []);
        assert_eq!(schedule.ran(&entries(&[(50, 7, 4, 4), (40, 7, 0, 0)])), [(7, 4)]);
        assert_eq!(schedule.ran(&entries(&[(50, 7, 4, 4), (90, 7, 30, 34)])), [(7, 30)]);
        assert_eq!(schedule.ran(&entries(&[(200, 7, 5, 5)])), [(7, 5)]);
    }

    #[test]
    fn a_policy_is_told_once() {
        let log = |scheduler_policy, timeslice| VgpuSchedulerLog {
            engine_id: 1,
            scheduler_policy,
            arr_mode: 1,
            scheduler_params: VgpuSchedulerParams { avg_factor: None, timeslice },
            entries_count: 0,
            entries: Vec::new(),
        };
        let mut schedule = Schedule::default();
        let fixed = Some(("vGPU scheduler: fixed share", 2_000_000.0));
        assert_eq!(schedule.policy(&log(3, 2_000_000)), fixed);
        assert_eq!(schedule.policy(&log(3, 2_000_000)), None);
        assert_eq!(schedule.policy(&log(1, 0)), Some(("vGPU scheduler: best effort", 0.0)));
        assert_eq!(schedule.policy(&log(0, 0)), None);
    }
}
