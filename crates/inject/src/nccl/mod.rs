//! The NCCL door: a profiler plug-in.
