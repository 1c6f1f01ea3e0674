//! Contexts.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::mem::ManuallyDrop;

use super::driver::{CONTEXT_BYTES, CURRENT, Handle, device, driver, gpu_of, ready, working};
use super::submit::Call;
use super::{Code, Status, status};
use crate::c::Out;
use crate::cupti::cbid;
use crate::machine::pid;

thread_local! {
    /// The contexts below this thread's. Never dropped: handlers of the exit still push and pop, as they may with the real
    /// driver.
    static PUSHED: ManuallyDrop<RefCell<Vec<Handle>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

fn create_context(to: Out<Handle>, ordinal: c_int) -> Status {
    let device = device(ordinal)?;
    let context = driver()?.new_context(device)?;
    CURRENT.set(context);
    Ok(to.put(context)?)
}

exported! {
    fn cuDevicePrimaryCtxRetain(to: Out<Handle>, ordinal: c_int) {
        let device = device(ordinal)?;
        let mut driver = driver()?;
        let context = match driver.primary.get(&device) {
            Some(context) => *context,
            None => {
                let context = driver.new_context(device)?;
                driver.primary.insert(device, context);
                context
            }
        };
        Ok(to.put(context)?)
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        device(ordinal).map(|_| ())
    }

    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let device = device(ordinal)?;
        flags.put(0)?;
        Ok(active.put(driver()?.primary.contains_key(&device).into())?)
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        if !driver()?.contexts.contains_key(&context) {
            return Err(Code::InvalidContext);
        }
        PUSHED.with(|pushed| pushed.borrow_mut().push(CURRENT.replace(context)));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(to: Out<Handle>) {
        ready()?;
        let below = PUSHED.with(|pushed| pushed.borrow_mut().pop()).ok_or(Code::InvalidContext)?;
        let popped = CURRENT.replace(below);
        if !to.is_null() {
            to.put(popped)?;
        }
        Ok(())
    }

    fn cuCtxCreate_v2(to: Out<Handle>, _flags: c_uint, ordinal: c_int) {
        create_context(to, ordinal)
    }

    fn cuCtxCreate_v4(to: Out<Handle>, _params: Out<c_int>, _flags: c_uint, ordinal: c_int) {
        create_context(to, ordinal)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        let mut driver = driver()?;
        let gone = driver.contexts.remove(&context).ok_or(Code::InvalidContext)?;
        driver.streams.retain(|_, stream| stream.context != context);
        driver.primary.retain(|_, primary| *primary != context);
        gpu_of(gone.device)?.release(pid(), CONTEXT_BYTES);
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        if context != 0 && !driver()?.contexts.contains_key(&context) {
            return Err(Code::InvalidContext);
        }
        CURRENT.set(context);
        Ok(())
    }

    fn cuCtxGetCurrent(to: Out<Handle>) {
        ready()?;
        Ok(to.put(CURRENT.get())?)
    }

    fn cuCtxGetDevice(to: Out<c_int>) {
        Ok(to.put(driver()?.current()?.1.device as c_int)?)
    }

    fn cuCtxSynchronize() {
        let call = Call::begin(cbid::CTX_SYNCHRONIZE);
        let until = driver().and_then(|driver| {
            let (current, context) = driver.current()?;
            working(context.device)?;
            let streams = driver.streams.values().filter(|s| s.context == current);
            Ok(streams.map(|s| s.until).max().unwrap_or(0))
        });
        call.end(until)
    }
}
