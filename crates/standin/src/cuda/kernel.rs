//! Modules, and launching their kernels.

use std::ffi::c_uint;

use super::driver::{Handle, Node, driver, handle};
use super::submit::Call;
use super::{Code, status};
use crate::c::{Out, Static, Text};
use crate::cupti::cbid;

exported! {
    fn cuModuleLoadData(to: Out<Handle>, image: Out<u8>) {
        if image.is_null() {
            return Err(Code::InvalidValue);
        }
        let mut driver = driver()?;
        driver.current()?;
        let module = handle();
        driver.modules.insert(module, ());
        Ok(to.put(module)?)
    }

    fn cuModuleUnload(module: Handle) {
        driver()?.modules.remove(&module).ok_or(Code::InvalidHandle)
    }

    fn cuModuleGetFunction(to: Out<Handle>, module: Handle, name: Text) {
        let mut driver = driver()?;
        driver.modules.get(&module).ok_or(Code::InvalidHandle)?;
        let function = handle();
        driver.functions.insert(function, Static::leak(&name.get()?));
        Ok(to.put(function)?)
    }

    fn cuFuncGetName(to: Out<Static>, function: Handle) {
        Ok(to.put(*driver()?.functions.get(&function).ok_or(Code::InvalidHandle)?)?)
    }

    /// The first parameter is how long the kernel takes at the nominal clock, ns.
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle, params: Out<Out<u64>>,
        _extra: Out<usize>,
    ) {
        let call = Call::begin(cbid::LAUNCH_KERNEL);
        let launch = || {
            let mut driver = driver()?;
            let name = *driver.functions.get(&function).ok_or(Code::InvalidHandle)?;
            let node = Node::Kernel {
                name,
                work: params.get()?.get()?,
                grid: [grid_x, grid_y, grid_z].map(|n| n as i32),
                block: [block_x, block_y, block_z].map(|n| n as i32),
                shared: shared as i32,
            };
            driver.submit(stream, node, call.correlation)
        };
        let done = launch();
        call.end(done)
    }
}
