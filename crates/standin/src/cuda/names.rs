//! `cuGetProcAddress`: how CUDA's run time asks the driver for its functions.

use std::ffi::{c_int, c_void};

use super::context::*;
use super::device::*;
use super::error::*;
use super::graph::*;
use super::kernel::*;
use super::library::*;
use super::link::*;
use super::managed::*;
use super::memory::*;
use super::stream::*;
use super::{Code, Status, status};
use crate::c::{Out, Text};

/// A function's address.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Address(*const c_void);

macro_rules! names {
    ($($asked:literal = $function:ident,)*) => {
        fn address(asked: &str) -> Option<Address> {
            Some(Address(match asked {
                $($asked => $function as *const c_void,)*
                _ => return None,
            }))
        }
    };
}

names! {
    "cuCtxCreate" = cuCtxCreate_v2,
    "cuCtxDestroy" = cuCtxDestroy_v2,
    "cuCtxGetCurrent" = cuCtxGetCurrent,
    "cuCtxGetDevice" = cuCtxGetDevice,
    "cuCtxPopCurrent" = cuCtxPopCurrent_v2,
    "cuCtxPushCurrent" = cuCtxPushCurrent_v2,
    "cuCtxSetCurrent" = cuCtxSetCurrent,
    "cuCtxSynchronize" = cuCtxSynchronize,
    "cuDeviceGet" = cuDeviceGet,
    "cuDeviceGetAttribute" = cuDeviceGetAttribute,
    "cuDeviceGetCount" = cuDeviceGetCount,
    "cuDeviceGetName" = cuDeviceGetName,
    "cuDevicePrimaryCtxGetState" = cuDevicePrimaryCtxGetState,
    "cuDevicePrimaryCtxRelease" = cuDevicePrimaryCtxRelease_v2,
    "cuDevicePrimaryCtxRetain" = cuDevicePrimaryCtxRetain,
    "cuDriverGetVersion" = cuDriverGetVersion,
    "cuFuncGetName" = cuFuncGetName,
    "cuFuncGetParamInfo" = cuFuncGetParamInfo,
    "cuFuncSetAttribute" = cuFuncSetAttribute,
    "cuGetErrorName" = cuGetErrorName,
    "cuGetErrorString" = cuGetErrorString,
    "cuGetProcAddress" = cuGetProcAddress_v2,
    "cuGraphDestroy" = cuGraphDestroy,
    "cuGraphInstantiate" = cuGraphInstantiateWithFlags,
    "cuGraphLaunch" = cuGraphLaunch,
    "cuInit" = cuInit,
    "cuKernelGetFunction" = cuKernelGetFunction,
    "cuLaunchKernel" = cuLaunchKernel,
    "cuLaunchKernelEx" = cuLaunchKernelEx,
    "cuLibraryGetGlobal" = cuLibraryGetGlobal,
    "cuLibraryGetKernel" = cuLibraryGetKernel,
    "cuLibraryGetModule" = cuLibraryGetModule,
    "cuLibraryLoadData" = cuLibraryLoadData,
    "cuLibraryLoadFromFile" = cuLibraryLoadFromFile,
    "cuLibraryUnload" = cuLibraryUnload,
    "cuLinkAddData" = cuLinkAddData_v2,
    "cuLinkAddFile" = cuLinkAddFile_v2,
    "cuLinkComplete" = cuLinkComplete,
    "cuLinkCreate" = cuLinkCreate_v2,
    "cuLinkDestroy" = cuLinkDestroy,
    "cuMemAdvise" = cuMemAdvise_v2,
    "cuMemAlloc" = cuMemAlloc_v2,
    "cuMemAllocManaged" = cuMemAllocManaged,
    "cuMemFree" = cuMemFree_v2,
    "cuMemHostGetDevicePointer" = cuMemHostGetDevicePointer_v2,
    "cuMemHostRegister" = cuMemHostRegister_v2,
    "cuMemHostUnregister" = cuMemHostUnregister,
    "cuMemPrefetchAsync" = cuMemPrefetchAsync_v2,
    "cuMemcpyDtoH" = cuMemcpyDtoH_v2,
    "cuMemcpyDtoHAsync" = cuMemcpyDtoHAsync_v2,
    "cuMemcpyHtoD" = cuMemcpyHtoD_v2,
    "cuMemcpyHtoDAsync" = cuMemcpyHtoDAsync_v2,
    "cuMemsetD8Async" = cuMemsetD8Async,
    "cuModuleGetFunction" = cuModuleGetFunction,
    "cuModuleGetGlobal" = cuModuleGetGlobal_v2,
    "cuModuleLoad" = cuModuleLoad,
    "cuModuleLoadData" = cuModuleLoadData,
    "cuModuleLoadDataEx" = cuModuleLoadDataEx,
    "cuModuleLoadFatBinary" = cuModuleLoadFatBinary,
    "cuModuleUnload" = cuModuleUnload,
    "cuOccupancyMaxActiveBlocksPerMultiprocessor" = cuOccupancyMaxActiveBlocksPerMultiprocessor,
    "cuStreamBeginCapture" = cuStreamBeginCapture_v2,
    "cuStreamCreate" = cuStreamCreate,
    "cuStreamCreateWithPriority" = cuStreamCreateWithPriority,
    "cuStreamDestroy" = cuStreamDestroy_v2,
    "cuStreamEndCapture" = cuStreamEndCapture,
    "cuStreamGetPriority" = cuStreamGetPriority,
    "cuStreamIsCapturing" = cuStreamIsCapturing,
    "cuStreamQuery" = cuStreamQuery,
    "cuStreamSynchronize" = cuStreamSynchronize,
    "cuThreadExchangeStreamCaptureMode" = cuThreadExchangeStreamCaptureMode,
}

fn find(name: Text, to: Out<Address>) -> Status {
    let found = address(&name.get()?).ok_or(Code::NotFound)?;
    Ok(to.put(found)?)
}

exported! {
    fn cuGetProcAddress(name: Text, to: Out<Address>, _version: c_int, _flags: u64) { find(name, to) }

    fn cuGetProcAddress_v2(
        name: Text, to: Out<Address>, _version: c_int, _flags: u64, found: Out<c_int>,
    ) {
        let done = find(name, to);
        if !found.is_null() {
            // CU_GET_PROC_ADDRESS_SUCCESS and _SYMBOL_NOT_FOUND.
            found.put(done.is_err().into())?;
        }
        done
    }
}
