//! The NCCL door: a profiler plug-in.

/// What is asked from now on.
pub fn ask(_settings: gpuwhy_wire::Settings) {}
