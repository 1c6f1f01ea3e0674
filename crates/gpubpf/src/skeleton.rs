//! What `gpuwhy probe new` writes: a probe that builds at the first try.

/// Files by their names.
pub const SKELETON: &[(&str, &str)] = &[
    ("probe.bpf.c", include_str!("../skeleton/probe.bpf.c")),
    ("Makefile", include_str!("../skeleton/Makefile")),
    ("gpuwhy_probe.h", include_str!("../include/gpuwhy_probe.h")),
    ("gpuwhy_tracepoint.h", include_str!("../include/gpuwhy_tracepoint.h")),
];
