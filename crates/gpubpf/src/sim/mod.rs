//! A simulator for PTX: kernels run without a GPU, every access checked.
//!
//! It reads a module with [`crate::ptx::Module`] and runs its kernels warp by warp: 32 lanes, those
//! that part at a branch meet again at its immediate post-dominator. It is made for tests: of
//! compiled probes, of kernels with probes put into them, and of anybody's own kernels against
//! outputs that are known.
//!
//! ```
//! use gpuwhy_gpubpf::{ptx::Module, sim};
//!
//! let text = ".version 7.8\n.target sm_75\n.address_size 64\n
//! .visible .entry twice(.param .u64 numbers) {
//!     .reg .b32 %r<4>; .reg .b64 %rd<4>;
//!     ld.param.u64 %rd1, [numbers];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     ld.global.u32 %r2, [%rd3];
//!     shl.b32 %r3, %r2, 1;
//!     st.global.u32 [%rd3], %r3;
//!     ret;
//! }";
//! let mut device = sim::Device::new(sim::Config::default());
//! let image = device.load(&Module::read(text)?)?;
//! let numbers = device.upload(&[1, 0, 0, 0, 5, 0, 0, 0]).ok_or("no room")?;
//! let facts = device.launch(&image, &sim::Launch {
//!     kernel: "twice",
//!     grid: [1, 1, 1],
//!     block: [2, 1, 1],
//!     dynamic_shared: 0,
//!     parameters: &[numbers.to_le_bytes().to_vec()],
//! })?;
//! assert_eq!(device.read(numbers, 8)?, [2, 0, 0, 0, 10, 0, 0, 0]);
//! assert_eq!(facts.total.sectors, 2); // one sector read, one written
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it tells
//!
//! A kernel that reads or writes outside of an allocation, misaligned, or what nobody has written,
//! that uses a result which PTX leaves open (a division by zero, a lane that takes no part in a
//! shuffle), or whose threads wait for each other for ever, ends with a [`Fault`]: the statement, its
//! line, the block and the thread. So does an instruction that the simulator does not know.
//!
//! # Its clock
//!
//! A warp issues one instruction per cycle of its SM; the warps of an SM take turns. An access to
//! device memory keeps the SM's memory busy for a cycle per sector of 32 bytes, one to shared memory
//! for a cycle per word that the busiest bank has to give, and the warp waits for it: *a bank
//! conflict delays the whole warp*, and no lane of it alone. Lanes that part are issued one after the
//! other. Nothing else takes time; these cycles compare programs and are no prediction of a GPU's.
//!
//! # What differs from a GPU
//!
//! - Memory is one and the same for all at once: fences do nothing, and no race is found.
//! - Approximations (`sin.approx`, `ex2.approx`, `div.approx` …) are computed exactly and rounded.
//! - `mma` adds up in 64 bits and rounds once.
//! - `cp.async` copies when it is waited for, and not before.
//! - Clusters, `wgmma`, tensor maps, `mbarrier`, textures and surfaces are not known.
//!
//! *Invariant:* a simulation ends after [`Limits::instructions`], takes memory within [`Limits`], and
//! opens nothing.

mod access;
mod calc;
mod code;
mod decode;
mod device;
mod exec;
mod facts;
mod fault;
mod floats;
mod flow;
mod integers;
mod load;
mod machine;
mod maps;
mod memory;
mod mma;
mod names;
mod ops;
mod soft;
mod space;
mod sync;
pub(crate) mod text;
mod types;
mod warp;

pub use crate::contents::{Contents, Entry, Record};
pub use device::{Config, Device, Launch, LaunchError, Limits};
pub use facts::{Counts, Facts, WarpFacts};
pub use fault::{Fault, Trouble};
pub use load::{Image, LoadFault};
pub use maps::Maps;
pub use memory::Touch;
pub use space::Space;
