//! Stand-ins for `libnvidia-ml.so.1`, `libcuda.so.1` and `libcupti.so`, over one scripted device.
//!
//! One object under all of the names (`gpuwhy_testkit::gpu::link_libraries`), with the real C
//! interfaces, so that what is tested with it is the code that will meet the real libraries. The
//! device is that of [`gpuwhy_testkit::gpu`]; the directory that `GPUWHY_STANDIN` names holds it.
//!
//! It says what the real libraries say, with their codes, sizes, lags and known defects, as far as
//! a program that watches GPUs asks. What nobody has scripted is an error that says so.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `GPUWHY_STANDIN` | directory of the device; without it there is no driver |
//! | `GPUWHY_STANDIN_GPUS` | GPUs of a device that has to be made; 1 |
//! | `GPUWHY_STANDIN_DEFECTS` | defects of CUPTI in this process, with commas between |
//! | `GPUWHY_STANDIN_CUDA` | version of the driver; 13000, or 12080 for one of CUDA 12 |
//! | `GPUWHY_STANDIN_CUPTI` | version of CUPTI's API; 130001, or 26 if CUDA is 12 |
//!
//! *Invariants.* Nothing unwinds out of an exported function: each body runs inside `c::guarded`.
//! Callbacks of the program are called with no lock held that the program's calls would take.

#[macro_use]
mod c;
mod cuda;
mod cupti;
mod lock;
mod machine;
mod nvml;
