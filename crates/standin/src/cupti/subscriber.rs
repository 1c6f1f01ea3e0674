//! Subscribing and finalising, version, clocks, and names.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_testkit::gpu::Defect;

use super::activity::cbid;
use super::delivery::{DELIVERY, deliver, has};
use super::records::version;
use super::settings::{ANY_CALL, CALLBACKS, CLOCK, ENABLED_CALLS, KINDS, ReadClock};
use super::{Code, Status, status};
use crate::c::{self, Out, Static};
use crate::machine::realtime;

/// The handle of the only subscriber.
const SUBSCRIBER: usize = 0x6370;
/// 1 while there is a subscriber.
static SUBSCRIBED: AtomicU64 = AtomicU64::new(0);

/// `CUpti_SubscriberParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SubscriberParams {
    size: usize,
    name: usize,
    old_name: Out<c_char>,
    old_size: usize,
}

/// Whether somebody subscribed.
pub fn has_subscriber() -> bool {
    SUBSCRIBED.load(Relaxed) != 0
}

fn subscribe(to: Out<usize>) -> Status {
    if to.is_null() {
        return Err(Code::InvalidParameter);
    }
    if has(Defect::SubscriberRefused) || SUBSCRIBED.swap(1, Relaxed) != 0 {
        return Err(Code::MultipleSubscribers);
    }
    Ok(to.put(SUBSCRIBER)?)
}

exported! {
    fn cuptiGetVersion(to: Out<u32>) { Ok(to.put(version())?) }

    fn cuptiGetTimestamp(to: Out<u64>) {
        Ok(to.put(CLOCK.lock().map_or_else(realtime, |clock| clock()))?)
    }

    fn cuptiSubscribe(to: Out<usize>, _callback: usize, _user: usize) { subscribe(to) }

    fn cuptiSubscribe_v2(
        to: Out<usize>, _callback: usize, _user: usize, params: Out<SubscriberParams>,
    ) {
        if version() < 130_001 {
            return Err(Code::NotSupported);
        }
        let params = if params.is_null() { None } else { Some(params.get()?) };
        if params.is_some_and(|p| p.size < size_of::<SubscriberParams>()) {
            return Err(Code::InvalidParameter);
        }
        let done = subscribe(to);
        if let (Err(Code::MultipleSubscribers), Some(params)) = (done, params) {
            let _ = c::put_text(params.old_name, params.old_size, "CUPTI for Nsight Systems");
        }
        done
    }

    fn cuptiUnsubscribe(subscriber: usize) {
        if subscriber != SUBSCRIBER || SUBSCRIBED.swap(0, Relaxed) == 0 {
            return Err(Code::InvalidParameter);
        }
        Ok(())
    }

    /// Callbacks at calls can be enabled and are never called.
    fn cuptiEnableCallback(_enable: u32, _subscriber: usize, _domain: u32, _cbid: u32) { Ok(()) }
    fn cuptiEnableDomain(_enable: u32, _subscriber: usize, _domain: u32) { Ok(()) }

    fn cuptiActivityRegisterTimestampCallback(clock: Option<ReadClock>) {
        let clock = clock.ok_or(Code::InvalidParameter)?;
        if has(Defect::NoTimestampCallback) {
            return Err(Code::NotSupported);
        }
        *CLOCK.lock() = Some(clock);
        Ok(())
    }

    fn cuptiGetCallbackName(domain: u32, cbid: u32, to: Out<Static>) {
        // Domain 1 are the functions of the driver.
        let name = if domain == 1 { callback_name(cbid) } else { None };
        to.put(name.map_or(Static::NULL, Static::from))?;
        name.map(|_| ()).ok_or(Code::InvalidParameter)
    }

    fn cuptiGetResultString(code: u32, to: Out<Static>) {
        let name = match code {
            0 => c"CUPTI_SUCCESS",
            1 => c"CUPTI_ERROR_INVALID_PARAMETER",
            7 => c"CUPTI_ERROR_INVALID_OPERATION",
            10 => c"CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT",
            12 => c"CUPTI_ERROR_MAX_LIMIT_REACHED",
            14 => c"CUPTI_ERROR_NOT_COMPATIBLE",
            21 => c"CUPTI_ERROR_INVALID_KIND",
            27 => c"CUPTI_ERROR_NOT_SUPPORTED",
            39 => c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
            999 => c"CUPTI_ERROR_UNKNOWN",
            _ => return Err(Code::InvalidParameter),
        };
        Ok(to.put(name.into())?)
    }

    fn cuptiFinalize() {
        let done = deliver(true);
        // The buffer that is left is empty, and is the client's.
        let callbacks = CALLBACKS.lock().take();
        if let (Some((_, complete)), Some(empty)) = (callbacks, DELIVERY.lock().buffer.take()) {
            empty.complete(complete);
        }
        KINDS.store(0, Relaxed);
        ENABLED_CALLS.lock().clear();
        ANY_CALL.store(false, Relaxed);
        *CLOCK.lock() = None;
        SUBSCRIBED.store(0, Relaxed);
        done
    }
}

/// The function of a callback id.
fn callback_name(id: u32) -> Option<&'static CStr> {
    Some(match id {
        cbid::CTX_SYNCHRONIZE => c"cuCtxSynchronize",
        cbid::STREAM_SYNCHRONIZE => c"cuStreamSynchronize",
        cbid::MEMSET_ASYNC => c"cuMemsetD8Async",
        cbid::COPY_TO_DEVICE => c"cuMemcpyHtoD_v2",
        cbid::COPY_TO_DEVICE_ASYNC => c"cuMemcpyHtoDAsync_v2",
        cbid::COPY_TO_HOST => c"cuMemcpyDtoH_v2",
        cbid::COPY_TO_HOST_ASYNC => c"cuMemcpyDtoHAsync_v2",
        cbid::COPY_WITHIN_ASYNC => c"cuMemcpyDtoDAsync_v2",
        cbid::LAUNCH_KERNEL => c"cuLaunchKernel",
        cbid::COPY_PEER_ASYNC => c"cuMemcpyPeerAsync",
        cbid::GRAPH_LAUNCH => c"cuGraphLaunch",
        _ => return None,
    })
}
