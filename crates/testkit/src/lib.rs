//! A workload whose steps we know, and injectors that slow it for reasons that we know: the truth
//! that verdicts are compared with.
//!
//! [`steploop`] runs a small parallel job: ranks in network namespaces of their own, joined by
//! veth pairs, each step reading from disk, computing on a simulated device, reducing over TCP,
//! updating under a lock and sometimes writing a checkpoint. [`inject`] disturbs it, each
//! disturbance with a label that says what was done, by whom, from when to when.
//!
//! [`gpu`] is a machine with scripted GPUs; the crate `gpuwhy-standin` puts the C interfaces of
//! NVIDIA's libraries over it. [`gpuloop`] is a workload on it, and [`gpufault`] what can happen to
//! it.
//!
//! Ranks and culprits are processes of their own, so that a recorder sees them as it sees
//! anybody's. They are this same program, started again: its `main` must begin with
//! [`helper::dispatch`].

mod cuda;
pub mod gpu;
pub mod gpufault;
pub mod gpuloop;
pub mod helper;
pub mod inject;
pub mod measure;
pub mod steploop;
pub mod sys;

/// Waits for what another thread or process is about to do; only a machine that hangs makes this fail.
///
/// # Panics
/// If it does not come true within 30 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < patience, "{what} did not come true within 30 s");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
