//! The kinds of disturbances, with the verdict that each should get.

use serde::{Deserialize, Serialize};

/// A kind of disturbance.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Busy threads on the CPU of rank 0.
    CpuHog,
    /// Busy threads on all CPUs.
    CpuHogMany,
    /// A real-time thread that is busy most of the time on the CPU of rank 0.
    RtHog,
    /// A CPU quota for the workload's control group, below what it uses.
    CgroupQuota,
    /// Many large O_DIRECT writes at once on the workload's file system.
    OdirectWriter,
    /// Many files written and synced on the workload's file system.
    FsyncStorm,
    /// Memory taken and touched in the workload's memory control group.
    MemoryHog,
    /// The data set dropped from the page cache again and again.
    CacheEvict,
    /// UDP packets through rank 0's link to rank 1.
    UdpBurst,
    /// A lower speed of rank 0's link to rank 1.
    LinkCap,
    /// Rank 1 stopped and continued.
    Sigstop,
    /// The lock that every step takes, held for long times.
    LockHolder,
    /// A lower clock of the simulated devices.
    DeviceSlowdown,
    /// Many thousand timer interrupts a second on the CPU of rank 0, as of a profiler at too high a
    /// rate.
    IrqStorm,
    /// Rank 0 repeats part of its work needlessly, as inefficient code does.
    SlowCode,
    /// More work in every step, which is no fault.
    LoadChange,
    /// No disturbance.
    None,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 17] = [
        Kind::CpuHog,
        Kind::CpuHogMany,
        Kind::RtHog,
        Kind::CgroupQuota,
        Kind::OdirectWriter,
        Kind::FsyncStorm,
        Kind::MemoryHog,
        Kind::CacheEvict,
        Kind::UdpBurst,
        Kind::LinkCap,
        Kind::Sigstop,
        Kind::LockHolder,
        Kind::DeviceSlowdown,
        Kind::IrqStorm,
        Kind::SlowCode,
        Kind::LoadChange,
        Kind::None,
    ];

    /// Its name, which is also that of its process.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::CpuHog => "cpu-hog",
            Kind::CpuHogMany => "cpu-hog-many",
            Kind::RtHog => "rt-hog",
            Kind::CgroupQuota => "cgroup-quota",
            Kind::OdirectWriter => "odirect-writer",
            Kind::FsyncStorm => "fsync-storm",
            Kind::MemoryHog => "memory-hog",
            Kind::CacheEvict => "cache-evict",
            Kind::UdpBurst => "udp-burst",
            Kind::LinkCap => "link-cap",
            Kind::Sigstop => "sigstop",
            Kind::LockHolder => "lock-holder",
            Kind::DeviceSlowdown => "device-slowdown",
            Kind::IrqStorm => "irq-storm",
            Kind::SlowCode => "slow-code",
            Kind::LoadChange => "load-change",
            Kind::None => "none",
        }
    }

    /// The class that a verdict should give, as the schema's `Class` names it; `None` where there
    /// should be no finding.
    pub const fn class(self) -> Option<&'static str> {
        Some(match self {
            Kind::CpuHog | Kind::CpuHogMany | Kind::RtHog => "cpu_contention",
            Kind::CgroupQuota => "cpu_throttling",
            Kind::OdirectWriter | Kind::FsyncStorm => "block_io",
            Kind::MemoryHog | Kind::CacheEvict => "memory_pressure",
            Kind::UdpBurst | Kind::LinkCap => "network",
            Kind::Sigstop => "collective_straggler",
            Kind::LockHolder => "lock_contention",
            Kind::DeviceSlowdown => "gpu_throttling",
            Kind::IrqStorm => "interrupts",
            Kind::SlowCode => "engine_software",
            Kind::LoadChange | Kind::None => return None,
        })
    }

    /// Name of the steps that it slows most, if it slows any.
    pub const fn slows(self) -> &'static str {
        match self {
            Kind::OdirectWriter | Kind::FsyncStorm => "step+ckpt",
            _ => "step",
        }
    }

    /// What [`Spec::intensity`](super::Spec::intensity) 1 means.
    pub const fn intensity(self) -> &'static str {
        match self {
            Kind::CpuHog => "4 busy threads",
            Kind::CpuHogMany => "4 busy threads a CPU",
            Kind::RtHog => "busy 14 of 20 ms",
            Kind::CgroupQuota => "quota of 60 % of what the workload used",
            Kind::OdirectWriter => "24 writes of 1 MiB at once",
            Kind::FsyncStorm => "32 writers of 4 MiB files",
            Kind::MemoryHog => "80 % of the group's memory",
            Kind::CacheEvict => "every 2 ms",
            Kind::UdpBurst => "4 senders",
            Kind::LinkCap => "an eighth of the speed",
            Kind::Sigstop => "stopped 30 of 60 ms",
            Kind::LockHolder => "held 30 of 33 ms",
            Kind::DeviceSlowdown => "half the clock",
            Kind::IrqStorm => "24 profilers of 20 kHz",
            Kind::SlowCode => "three times as much decoding",
            Kind::LoadChange => "half as much again",
            Kind::None => "nothing",
        }
    }
}
