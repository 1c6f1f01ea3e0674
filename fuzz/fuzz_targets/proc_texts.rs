//! The texts of /proc of which processes choose a part: their names, their cgroups, their mounts. Whatever a
//! cgroup below a user's service is called, it is that user's.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpuwhy_collect::fuzzing::proc_texts(data));
