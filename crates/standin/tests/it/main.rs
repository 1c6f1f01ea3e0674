//! The C interfaces of the stand-in, used as clients use the real libraries: loaded under their
//! names, called with the types of their documentation, and records read at their documented
//! offsets.
//!
//! The libraries have state per process, so each test runs in a process of its own ([`alone`]).

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::process::Command;

use gpuwhy_testkit::gpu::{self, Machine};

/// Calls a function that returns a code: `call!(lib, c"name", (value as type, ...))`.
macro_rules! call {
    ($library:expr, $name:literal $(, $arg:expr => $type:ty)* $(,)?) => {{
        let symbol = $library.symbol($name);
        // SAFETY: the function of this name has this type in the documentation; pointers are to
        // variables of the caller that are long enough.
        unsafe {
            let function: extern "C" fn($($type),*) -> u32 = std::mem::transmute(symbol);
            function($($arg),*)
        }
    }};
}

mod cupti;
mod nvml;

/// Environment variable: the test that this process runs.
const TEST: &str = "GPUWHY_STANDIN_TEST";

/// Runs `body` in a new process with these environment variables and a machine of two GPUs, which
/// it gets. To be called first in a test, with the path of the test.
pub(crate) fn alone(test: &str, env: &[(&str, &str)], body: impl FnOnce(&Machine)) {
    if std::env::var(TEST).is_ok_and(|name| name == test) {
        body(&Machine::from_env().unwrap());
        return;
    }
    let object = gpu::find_standin().expect("cargo builds the stand-in for this test");
    let dir = tempfile::tempdir().unwrap();
    let links = dir.path().join("lib");
    gpu::link_libraries(&links, &object).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(TEST, test)
        .env("LD_LIBRARY_PATH", &links)
        .env(gpu::ENV, dir.path())
        .env(gpu::ENV_GPUS, "2")
        .env_remove("CUDA_INJECTION64_PATH")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "no test is called `{test}`: {stdout}");
}

/// A library, loaded by its name.
pub(crate) struct Library(*mut c_void);

impl Library {
    pub(crate) fn load(name: &str) -> Library {
        let text = CString::new(name).unwrap();
        // SAFETY: a C string; the stand-in has no constructors.
        let library = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "no {name}");
        Library(library)
    }

    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is loaded, and stays so.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "no {name:?}");
        symbol
    }
}

/// Path of the stand-in.
pub(crate) fn object() -> PathBuf {
    gpu::find_standin().unwrap()
}
