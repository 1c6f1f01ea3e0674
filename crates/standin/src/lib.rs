//! Stand-ins for `libnvidia-ml.so.1`, `libcuda.so.1`, `libcupti.so` and `libsanitizer-public.so`, over one scripted device.
//!
//! One shared object under all of their names ([`gpuwhy_testkit::gpu::link_libraries`]), with the
//! real C interfaces, so that tests run the code that calls the real libraries. The device is the
//! machine of [`gpuwhy_testkit::gpu`]; the directory that `GPUWHY_STANDIN` names holds it.
//!
//! It returns what the real libraries return, with their codes, sizes, lags and known defects, as
//! far as a program that monitors GPUs uses them. What is not scripted returns an error code.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `GPUWHY_STANDIN` | directory of the machine; without it there is no driver |
//! | `GPUWHY_STANDIN_GPUS` | GPUs of a machine that does not exist yet; 1 |
//! | `GPUWHY_STANDIN_DEFECTS` | defects of CUPTI in this process, separated by commas |
//! | `GPUWHY_STANDIN_CUDA` | version of the driver; 13000, or 12080 for one of CUDA 12 |
//! | `GPUWHY_STANDIN_EXECUTES` | 1: kernels are executed in a simulator, and memory holds bytes |
//! | `GPUWHY_STANDIN_SOURCE` | a file of PTX: what is executed of images that are machine code alone, for kernels of the same names |
//! | `GPUWHY_STANDIN_REFUSES` | a text: PTX that contains it is refused (`CUDA_ERROR_INVALID_PTX`) |
//! | `GPUWHY_STANDIN_REFUSES_LAUNCHES` | a kernel whose launches are refused when it is executed (`CUDA_ERROR_INVALID_VALUE`) |
//! | `GPUWHY_STANDIN_LATE` | `KERNEL:FROM:US`: launches of a kernel that is executed begin so many us later than they could, after the first FROM |
//! | `GPUWHY_STANDIN_LEDGER` | a file: each launch that is executed is added to it, with when it was called, began and ended |
//! | `GPUWHY_STANDIN_MANAGED_MIB` | so much managed memory has room on a device where kernels are executed; without it all |
//! | `GPUWHY_STANDIN_MANAGED_LEDGER` | a file: each launch, prefetch and advice is added to it, with what it cost (`cuda::ledger`) |
//! | `GPUWHY_STANDIN_VGPUS` | set: the driver is that of a host of virtual GPUs, each held by one of the processes |
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
