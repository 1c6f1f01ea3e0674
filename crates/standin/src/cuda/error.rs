//! Names of the driver's error codes.

use std::ffi::CStr;

use super::{Code, Status, status};
use crate::c::{Out, Static};

fn error_name(code: u32) -> Option<&'static CStr> {
    Some(match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        218 => c"CUDA_ERROR_INVALID_PTX",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        999 => c"CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

fn put_error(code: u32, to: Out<Static>) -> Status {
    match error_name(code) {
        Some(name) => Ok(to.put(name.into())?),
        None => {
            to.put(Static::NULL)?;
            Err(Code::InvalidValue)
        }
    }
}

exported! {
    fn cuGetErrorName(code: u32, to: Out<Static>) { put_error(code, to) }
    fn cuGetErrorString(code: u32, to: Out<Static>) { put_error(code, to) }
}
