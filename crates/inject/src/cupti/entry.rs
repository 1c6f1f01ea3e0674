//! What the driver calls when it loads this object, and the end of the process.

use std::time::Duration;

use super::session;
use crate::{link, tenants};

/// How often the end of a process looks whether our thread has left CUPTI, 1 ms apart.
const LEAVE_TRIES: u32 = 100;

/// What the driver calls in `cuInit`. Always returns 1, which is success.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    crate::guarded(1, || {
        // On the driver's own thread, so that it need not wait for one of ours.
        if !gpuwhy_wire::is_off() && session::open(|| link::start(&tenants::TENANTS)) {
            // SAFETY: the handler stays where it is, since this object is never unloaded.
            unsafe { libc::atexit(at_exit) };
        }
        1
    })
}

/// Reports the last records of a process that ends in good order.
extern "C" fn at_exit() {
    crate::guarded((), || {
        // After us run the handlers of CUDA and CUPTI, which take apart what our thread may be
        // calling at this moment: it does not begin again, and is waited for a little.
        session::close();
        for _ in 0..LEAVE_TRIES {
            if session::leave() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
