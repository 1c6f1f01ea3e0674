//! What the driver calls when it loads this object.

use super::session;
use crate::{link, tenants};

/// What the driver calls in `cuInit`. Always returns 1, which is success.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    crate::guarded(1, || {
        // On the driver's own thread, so that it need not wait for one of ours.
        if !gpuwhy_wire::is_off() {
            session::open(|| link::start(&tenants::TENANTS));
        }
        1
    })
}
