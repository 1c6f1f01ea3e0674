//! What `gpuwhy probe new` writes: a probe that builds at the first try.

/// A probe to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skeleton {
    /// Its name, by which it is asked for.
    pub name: &'static str,
    /// What it tells, in one line.
    pub about: &'static str,
    /// The text of `probe.bpf.c`.
    pub program: &'static str,
}

/// The probes that there are; the first is the one to write one's own from.
pub const SKELETONS: &[Skeleton] = &[
    Skeleton {
        name: "counts",
        about: "How many warps enter each kernel, and how many bytes they load: to write one's own from",
        program: include_str!("../skeleton/probe.bpf.c"),
    },
    Skeleton {
        name: "work",
        about: "Which lanes and threads do more of a kernel's work than others",
        program: include_str!("../skeleton/tools/work.bpf.c"),
    },
    Skeleton {
        name: "barriers",
        about: "How long each thread waits at barriers of its block",
        program: include_str!("../skeleton/tools/barriers.bpf.c"),
    },
    Skeleton {
        name: "blocks",
        about: "When each block ran, and on which SM",
        program: include_str!("../skeleton/tools/blocks.bpf.c"),
    },
    Skeleton {
        name: "tail",
        about: "How many blocks run over time: launches that wait for their last blocks",
        program: include_str!("../skeleton/tools/tail.bpf.c"),
    },
    Skeleton {
        name: "launchlate",
        about: "How long launches take from the host's call until their first block runs, launch by launch",
        program: include_str!("../skeleton/tools/launchlate.bpf.c"),
    },
    Skeleton {
        name: "contended",
        about: "Which words many threads change at once by atomic operations",
        program: include_str!("../skeleton/tools/contended.bpf.c"),
    },
    Skeleton {
        name: "stalls",
        about: "How long loads of global memory take, as a histogram of cycles",
        program: include_str!("../skeleton/tools/stalls.bpf.c"),
    },
    Skeleton {
        name: "returns",
        about: "How long threads are in a kernel, as a histogram",
        program: include_str!("../skeleton/tools/returns.bpf.c"),
    },
    Skeleton {
        name: "reversed",
        about: "The blocks of kernels that steal work, from the last to the first",
        program: include_str!("../skeleton/tools/reversed.bpf.c"),
    },
    Skeleton {
        name: "strided",
        about: "The blocks of kernels that steal work, every eighth first",
        program: include_str!("../skeleton/tools/strided.bpf.c"),
    },
    Skeleton {
        name: "longest",
        about: "The blocks of kernels that steal work, those first that took longest in an earlier launch",
        program: include_str!("../skeleton/tools/longest.bpf.c"),
    },
    Skeleton {
        name: "sequential",
        about: "A policy: prefetches what launches come to that walk through managed memory",
        program: include_str!("../skeleton/tools/sequential.bpf.c"),
    },
    Skeleton {
        name: "stride",
        about: "A policy: prefetches what launches come to that go through managed memory by equal distances",
        program: include_str!("../skeleton/tools/stride.bpf.c"),
    },
    Skeleton {
        name: "hot",
        about: "A policy: keeps regions of managed memory on the device that are accessed most",
        program: include_str!("../skeleton/tools/hot.bpf.c"),
    },
];

impl Skeleton {
    /// The probe of this name.
    pub fn named(name: &str) -> Option<Self> {
        SKELETONS.iter().find(|skeleton| skeleton.name == name).copied()
    }

    /// The files of its directory, by their names.
    pub fn files(self) -> [(&'static str, &'static str); 4] {
        [
            ("probe.bpf.c", self.program),
            ("Makefile", include_str!("../skeleton/Makefile")),
            ("gpuwhy_probe.h", include_str!("../include/gpuwhy_probe.h")),
            ("gpuwhy_tracepoint.h", include_str!("../include/gpuwhy_tracepoint.h")),
        ]
    }
}
