//! What is loaded where kernels are executed.

use std::collections::HashMap;
use std::sync::Arc;

use gpuwhy_gpubpf::sim::{Device, Image};

use super::paging::Paging;

/// All that is loaded, and the devices' memories.
#[derive(Default)]
pub(super) struct Execution {
    pub(super) devices: HashMap<usize, Device>,
    /// Managed memory of devices that have some.
    pub(super) paging: HashMap<usize, Paging>,
    /// Modules, and libraries in the contexts in which they are used.
    pub(super) images: HashMap<usize, Loaded>,
    pub(super) libraries: HashMap<usize, Library>,
    /// Functions of modules, and kernels of libraries.
    pub(super) functions: HashMap<usize, Function>,
    pub(super) links: HashMap<usize, Link>,
    /// Modules that Sanitizer was not told of yet.
    pub(super) fresh: Vec<usize>,
    /// Launches that were captured.
    pub(super) captured: Vec<Captured>,
    /// Launches so far of the kernel whose launches begin late.
    pub(super) launches: u64,
}

/// A link under way, or its result.
#[derive(Default)]
pub(super) struct Link {
    pub(super) parts: Vec<String>,
    pub(super) linked: Option<Box<[u8]>>,
}

pub(super) struct Loaded {
    pub(super) device: usize,
    pub(super) context: usize,
    /// Of which it is a part; 0 if of none.
    pub(super) library: usize,
    pub(super) image: Image,
    /// What is executed, without patches.
    pub(super) text: String,
    /// Its machine code, if it came with some; otherwise its text.
    pub(super) code: Arc<[u8]>,
}

/// A library: its text and machine code, and the module that it is in each context.
pub(super) struct Library {
    pub(super) text: String,
    pub(super) code: Arc<[u8]>,
    pub(super) modules: HashMap<usize, usize>,
}

#[derive(Clone)]
pub(super) struct Function {
    pub(super) name: String,
    /// A module or a library.
    pub(super) of: usize,
}

/// A kernel and its parameters, as they were when it was captured.
#[derive(Clone)]
pub(super) struct Captured {
    pub(super) function: Function,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) parameters: Vec<Vec<u8>>,
    /// The address that functions which Sanitizer calls are given; 0 if none is.
    pub(super) given: u64,
}
