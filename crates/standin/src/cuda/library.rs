//! Libraries: images that belong to no context until they are used in one. Only where kernels are executed.

use std::ffi::{c_int, c_uint};

use super::driver::{Handle, driver};
use super::execute::{executes, file, memory};
use super::{Code, Status, sanitizer, status};
use crate::c::{Out, Static, Text};

fn load(to: Out<Handle>, bytes: Result<Vec<u8>, Code>) -> Status {
    if !executes() {
        return Err(Code::InvalidValue);
    }
    let library = driver()?.load_library(bytes?)?;
    Ok(to.put(library)?)
}

exported! {
    fn cuLibraryLoadData(
        to: Out<Handle>, image: Out<u8>, _options: Out<c_int>, _values: Out<usize>, _count: c_uint,
        _more: Out<c_int>, _more_values: Out<usize>, _more_count: c_uint,
    ) {
        load(to, memory(image))
    }

    fn cuLibraryLoadFromFile(
        to: Out<Handle>, path: Text, _options: Out<c_int>, _values: Out<usize>, _count: c_uint,
        _more: Out<c_int>, _more_values: Out<usize>, _more_count: c_uint,
    ) {
        load(to, file(&path.get()?))
    }

    fn cuLibraryUnload(library: Handle) {
        let gone = driver()?.code.libraries.remove(&library).ok_or(Code::InvalidHandle)?;
        let modules: Vec<Handle> = gone.modules.into_values().collect();
        sanitizer::tell_unloading(&modules);
        let mut driver = driver()?;
        modules.into_iter().for_each(|module| _ = driver.unload_image(module));
        Ok(())
    }

    fn cuLibraryGetKernel(to: Out<Handle>, library: Handle, name: Text) {
        let mut driver = driver()?;
        let name = name.get()?;
        let kernel = driver.function(library, name.clone())?;
        driver.functions.insert(kernel, Static::leak(&name));
        Ok(to.put(kernel)?)
    }

    fn cuLibraryGetModule(to: Out<Handle>, library: Handle) {
        let module = driver()?.module_of(library)?;
        sanitizer::tell_loaded();
        Ok(to.put(module)?)
    }

    fn cuLibraryGetGlobal(to: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) {
        let module = driver()?.module_of(library)?;
        sanitizer::tell_loaded();
        let (at, size) = driver()?.global(module, &name.get()?)?;
        to.put(at)?;
        Ok(bytes.put(size)?)
    }

    /// A kernel may be launched in the place of a function.
    fn cuKernelGetFunction(to: Out<Handle>, kernel: Handle) {
        let of = driver()?.code.functions.get(&kernel).map(|function| function.of);
        if let Some(of) = of {
            driver()?.module_with(of)?;
            sanitizer::tell_loaded();
        }
        Ok(to.put(kernel)?)
    }
}
