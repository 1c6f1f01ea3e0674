//! Modules, and launching their kernels.

use std::ffi::{c_int, c_uint};

use super::code::Captured;
use super::driver::{Handle, Node, driver, handle};
use super::execute::{Parameters, executes, file, memory};
use super::submit::Call;
use super::{Code, Status, sanitizer, status};
use crate::c::{Out, Static, Text};
use crate::cupti::cbid;

fn load(to: Out<Handle>, image: Out<u8>) -> Status {
    if image.is_null() {
        return Err(Code::InvalidValue);
    }
    if executes() {
        return load_bytes(to, memory(image)?);
    }
    let mut driver = driver()?;
    driver.current()?;
    let module = handle();
    driver.modules.insert(module, ());
    Ok(to.put(module)?)
}

fn load_bytes(to: Out<Handle>, bytes: Vec<u8>) -> Status {
    let module = driver()?.load_image(bytes)?;
    sanitizer::tell_loaded();
    Ok(to.put(module)?)
}

/// Grid, block and shared memory of a launch.
struct Shape {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
}

/// The first parameter is how long the kernel takes at the nominal clock, ns, unless it is executed.
fn launch(function: Handle, shape: Shape, stream: Handle, params: Parameters) -> Status {
    let call = Call::begin(cbid::LAUNCH_KERNEL);
    let given = sanitizer::begins(function, stream, [shape.grid, shape.block]);
    let launch = || {
        let mut driver = driver()?;
        let name = *driver.functions.get(&function).ok_or(Code::InvalidHandle)?;
        let Shape { grid, block, shared } = shape;
        let captured = driver.captured(function, grid, block, shared, params)?;
        let (work, run, begin) = match captured {
            None => (params.each.get()?.cast::<u64>(0).get()?, None, 0),
            Some(launch) if driver.is_capturing(stream)? => (0, Some(driver.keep(launch)), 0),
            Some(launch) => {
                let ran = driver.execute(&Captured { given, ..launch }, stream)?;
                (ran.cycles, None, ran.begin)
            }
        };
        let node = Node::Kernel {
            name,
            work,
            grid: grid.map(|n| n as i32),
            block: block.map(|n| n as i32),
            shared: shared as i32,
            run,
            begin,
        };
        driver.submit(stream, node, call.correlation)
    };
    let done = launch();
    call.end(done)
}

exported! {
    fn cuModuleLoadData(to: Out<Handle>, image: Out<u8>) { load(to, image) }
    fn cuModuleLoadFatBinary(to: Out<Handle>, image: Out<u8>) { load(to, image) }

    fn cuModuleLoadDataEx(
        to: Out<Handle>, image: Out<u8>, _count: c_uint, _options: Out<c_int>, _values: Out<usize>,
    ) {
        load(to, image)
    }

    fn cuModuleLoad(to: Out<Handle>, path: Text) {
        let bytes = file(&path.get()?)?;
        if !executes() {
            return Err(Code::InvalidValue);
        }
        load_bytes(to, bytes)
    }

    fn cuModuleUnload(module: Handle) {
        sanitizer::tell_unloading(&[module]);
        let mut driver = driver()?;
        if driver.unload_image(module) {
            return Ok(());
        }
        driver.modules.remove(&module).ok_or(Code::InvalidHandle)
    }

    fn cuModuleGetFunction(to: Out<Handle>, module: Handle, name: Text) {
        let mut driver = driver()?;
        let name = name.get()?;
        let function = match driver.modules.get(&module) {
            Some(()) => handle(),
            None => driver.function(module, name.clone())?,
        };
        driver.functions.insert(function, Static::leak(&name));
        Ok(to.put(function)?)
    }

    fn cuModuleGetGlobal_v2(to: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        let (at, size) = driver()?.global(module, &name.get()?)?;
        if !to.is_null() {
            to.put(at)?;
        }
        if !bytes.is_null() {
            bytes.put(size)?;
        }
        Ok(())
    }

    fn cuFuncGetName(to: Out<Static>, function: Handle) {
        Ok(to.put(*driver()?.functions.get(&function).ok_or(Code::InvalidHandle)?)?)
    }

    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle, params: Out<Out<u8>>,
        extra: Out<usize>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, Shape { grid, block, shared }, stream, Parameters { each: params, extra })
    }

    /// `CUlaunchConfig`: seven numbers, then the stream; attributes are not looked at.
    fn cuLaunchKernelEx(
        how: Out<c_uint>, function: Handle, params: Out<Out<u8>>, extra: Out<usize>,
    ) {
        let mut numbers = [0; 7];
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = how.get_at(i)?;
        }
        let [gx, gy, gz, bx, by, bz, shared] = numbers;
        let stream = how.cast::<Handle>(32).get()?;
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
        launch(function, shape, stream, Parameters { each: params, extra })
    }

    fn cuFuncGetParamInfo(
        function: Handle, number: usize, place: Out<usize>, bytes: Out<usize>,
    ) {
        let (at, size) = driver()?.parameter(function, number)?;
        place.put(at)?;
        if bytes.is_null() { Ok(()) } else { Ok(bytes.put(size)?) }
    }

    /// A kernel of a library has the handle of a function here.
    fn cuKernelGetParamInfo(
        kernel: Handle, number: usize, place: Out<usize>, bytes: Out<usize>,
    ) {
        let (at, size) = driver()?.parameter(kernel, number)?;
        place.put(at)?;
        if bytes.is_null() { Ok(()) } else { Ok(bytes.put(size)?) }
    }

    /// No attribute is looked at.
    fn cuFuncSetAttribute(function: Handle, _which: c_int, _value: c_int) {
        driver()?.functions.get(&function).map(|_| ()).ok_or(Code::InvalidHandle)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        to: Out<c_int>, function: Handle, threads: c_int, shared: usize,
    ) {
        Ok(to.put(driver()?.occupancy(function, threads as u32, shared as u64)? as c_int)?)
    }
}
