//! A workload whose steps are known, and injectors that slow it for known reasons: the ground truth
//! that verdicts are compared with.
//!
//! [`steploop`] runs a small parallel job: ranks in network namespaces of their own, joined by
//! veth pairs. Each step reads from disk, computes on a simulated device, reduces over TCP, updates
//! under a lock and sometimes writes a checkpoint. [`inject`] disturbs it; each disturbance has a
//! label: what was done, by which process, from when to when.
//!
//! [`gpu`] is a machine with scripted GPUs; the crate `gpuwhy-standin` puts the C interfaces of
//! NVIDIA's libraries over it. [`gpuloop`] is a workload on it, [`gpufault`] injects its faults.
//!
//! [`fate`] is about programs in front of a command: what of the command's fate they must not change.
//!
//! Ranks and injectors are processes of their own, so that a recorder sees them as any others. They
//! are this same program, started again: its `main` must begin with [`helper::dispatch`].

mod cuda;
pub mod fate;
pub mod gpu;
pub mod gpufault;
pub mod gpuloop;
pub mod guest;
pub mod gvt;
pub mod helper;
pub mod inject;
pub mod measure;
pub mod steploop;
pub mod sys;
pub mod vms;

/// Waits until something that another thread or process will do has happened. It fails only on a
/// machine that hangs.
///
/// # Panics
/// If it does not happen within 30 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < patience, "{what} did not come true within 30 s");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
