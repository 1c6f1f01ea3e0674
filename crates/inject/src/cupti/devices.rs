//! Which GPU each of the process's device numbers means.

use gpuwhy_wire::Event;

use super::library::{self, Cuda};
use crate::ring::Ring;

/// More devices than this are not reported.
const MOST: i32 = 64;

/// Writes the UUID of each device; `None` while the driver does not know them.
pub fn report(ring: &Ring) -> Option<()> {
    let cuda = library::cuda()?;
    let mut count = 0;
    // SAFETY: the pointer is to our stack. Before `cuInit` is over this is an error.
    if unsafe { (cuda.count)(&raw mut count) } != 0 {
        return None;
    }
    for number in 0..count.clamp(0, MOST) {
        if let Some(uuid) = uuid(&cuda, number) {
            let name = ring.name(uuid_text(&uuid).as_str());
            let (device, at) = (number as u16, gpuwhy_wire::now());
            ring.write(Event::Device { name, device, at });
        }
    }
    Some(())
}

fn uuid(cuda: &Cuda, number: i32) -> Option<[u8; 16]> {
    let (mut device, mut uuid) = (0, [0; 16]);
    // SAFETY: the pointers are to our stack, a `CUuuid` has 16 bytes.
    let failed = unsafe {
        (cuda.device)(&raw mut device, number) != 0
            || (cuda.uuid_v2.unwrap_or(cuda.uuid))(&raw mut uuid, device) != 0
    };
    (!failed).then_some(uuid)
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as NVML prints it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut out = String::with_capacity(40);
    out.push_str("GPU");
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            out.push('-');
        }
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let uuid = [
            0x1b, 0x2c, 0x3d, 0x4e, 0x5f, 0x60, 0x71, 0x82, 0x93, 0xa4, 0xb5, 0xc6, 0xd7, 0xe8,
            0xf9, 0x0a,
        ];
        assert_eq!(uuid_text(&uuid), "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f90a");
    }
}
