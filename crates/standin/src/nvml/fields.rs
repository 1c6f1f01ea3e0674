//! Field values.

use std::ffi::{c_int, c_uint};

use gpuwhy_testkit::gpu::{Gpu, Quantity, ThrottleTime};

use super::clocks::energy;
use super::handle::{Device, micros};
use super::links::link;
use super::utilisation::Value;
use super::{Code, status};
use crate::c::Out;
use crate::machine::now;

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    at_us: i64,
    latency_us: i64,
    value_type: c_uint,
    code: c_uint,
    value: Value,
}
const _: () = assert!(size_of::<FieldValue>() == 40);

/// `nvmlValueType_t`.
const UINT: c_uint = 1;
const ULONGLONG: c_uint = 3;

/// Type and value of a field (`NVML_FI_DEV_*`).
fn field(gpu: &Gpu, id: c_uint, scope: c_uint, at: u64) -> Result<(c_uint, u64), Code> {
    let plain = |quantity| Ok((UINT, gpu.get(quantity)));
    let long = |quantity| Ok((ULONGLONG, gpu.get(quantity)));
    let held = |held| Ok((ULONGLONG, gpu.throttle_time(held, at)));
    // Counters of a link: the scope is its number, or all bits set for the sum.
    let of_link = |quantity| match scope {
        0 | u32::MAX => Ok((ULONGLONG, gpu.get(quantity))),
        scope => link(gpu, scope).map(|()| (ULONGLONG, 0)),
    };
    match id {
        1 | 2 => plain(Quantity::Ecc),
        3 | 5 => long(Quantity::EccCorrected),
        4 | 6 => long(Quantity::EccUncorrected),
        30 => plain(Quantity::RetiredPages),
        29 => Ok((UINT, 0)),
        38 => long(Quantity::NvLinkCrc),
        52 => long(Quantity::NvLinkReplays),
        59 => long(Quantity::NvLinkRecoveries),
        74 => held(ThrottleTime::Power),
        75 => held(ThrottleTime::Thermal),
        76 => held(ThrottleTime::SyncBoost),
        77..=79 => Ok((ULONGLONG, 0)),
        82 => Ok((UINT, gpu.get(Quantity::Temperature) + 6)),
        83 | 191 => Ok((ULONGLONG, energy(gpu)?)),
        91 => plain(Quantity::NvLinks),
        94 => plain(Quantity::PcieReplays),
        95 => plain(Quantity::PcieReplayRollovers),
        138 | 140 => of_link(Quantity::NvLinkTx),
        139 | 141 => of_link(Quantity::NvLinkRx),
        142 => plain(Quantity::RemappedCorrectable),
        143 => plain(Quantity::RemappedUncorrectable),
        144 => plain(Quantity::RemapPending),
        145 => plain(Quantity::RemapFailed),
        161 => of_link(Quantity::NvLinkReplays),
        162 => of_link(Quantity::NvLinkRecoveries),
        163 => of_link(Quantity::NvLinkCrc),
        169 => plain(Quantity::PcieRecoveries),
        173 => plain(Quantity::PcieCorrectable),
        // A NAK requests each replay.
        174 => plain(Quantity::PcieReplays),
        175..=183 => Ok((UINT, 0)),
        185 | 186 => Ok((UINT, gpu.power(at))),
        189 => Ok((UINT, 700_000)),
        190 => plain(Quantity::PowerLimit),
        197 => long(Quantity::PcieTx),
        198 => long(Quantity::PcieRx),
        269 => held(ThrottleTime::SwThermal),
        270 => held(ThrottleTime::HwThermal),
        271 => held(ThrottleTime::PowerBrake),
        _ => Err(Code::NotSupported),
    }
}

exported! {
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: Out<FieldValue>) {
        let gpu = device.gpu()?;
        if count < 1 || values.is_null() {
            return Err(Code::InvalidArgument);
        }
        for i in 0..count as usize {
            let mut value = values.get_at(i)?;
            let at = now();
            value.at_us = micros(at) as i64;
            value.latency_us = 1;
            match field(gpu, value.field, value.scope, at) {
                Ok((kind, number)) => {
                    (value.value_type, value.code, value.value) = (kind, 0, number);
                }
                Err(code) => value.code = code as c_uint,
            }
            values.put_at(i, value)?;
        }
        Ok(())
    }
}
