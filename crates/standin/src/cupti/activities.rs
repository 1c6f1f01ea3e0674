//! The interface of activity records: enabling kinds, buffers, records, attributes.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use super::activity::{cbid, kind};
use super::delivery::{deliver, start_worker};
use super::pending::DROPPED;
use super::records::size_of_kind;
use super::settings::{
    ANY_CALL, CALLBACKS, CompleteBuffer, ENABLED_CALLS, KINDS, LATENCY, RequestBuffer, is_on,
    must_be_whole, register_tear_down,
};
use super::{Code, status};
use crate::c::{Null, Out};
use crate::lock::Mutex;

/// Values of attributes that the client has set.
static ATTRIBUTES: Mutex<Option<HashMap<u32, Vec<u8>>>> = Mutex::new(None);

/// The value of a `CUpti_ActivityAttribute`; `None` if it does not exist.
fn attribute(attribute: u32) -> Option<Vec<u8>> {
    let default = match attribute {
        0 => 3_200_000usize,
        1 => 8_388_608,
        2 => 250,
        3 | 4 => 25_000,
        6 | 7 => 3,
        5 | 8 => return Some(vec![0]),
        9 => return Some(vec![1]),
        10 => 8_388_608,
        _ => return None,
    };
    let set = ATTRIBUTES.lock().as_ref().and_then(|all| all.get(&attribute).cloned());
    Some(set.unwrap_or_else(|| default.to_le_bytes().to_vec()))
}

/// The bit of a kind in [`KINDS`].
fn kind_bit(kind: u32) -> Result<u64, Code> {
    match kind {
        1..kind::COUNT => Ok(1 << kind),
        _ => Err(Code::InvalidKind),
    }
}

exported! {
    fn cuptiActivityRegisterCallbacks(request: Option<RequestBuffer>, complete: Option<CompleteBuffer>) {
        let both = request.zip(complete).ok_or(Code::InvalidParameter)?;
        *CALLBACKS.lock() = Some(both);
        start_worker();
        Ok(())
    }

    fn cuptiActivityEnable(of: u32) {
        must_be_whole();
        register_tear_down();
        let bit = kind_bit(of)?;
        let other = match of {
            kind::KERNEL => kind::CONCURRENT_KERNEL,
            kind::CONCURRENT_KERNEL => kind::KERNEL,
            _ => 0,
        };
        if other != 0 && is_on(other) {
            return Err(Code::NotCompatible);
        }
        KINDS.fetch_or(bit, Relaxed);
        Ok(())
    }

    fn cuptiActivityDisable(of: u32) {
        KINDS.fetch_and(!kind_bit(of)?, Relaxed);
        Ok(())
    }

    fn cuptiActivityEnableDriverApi(cbid: u32, enable: u8) {
        if !(1..cbid::COUNT).contains(&cbid) {
            return Err(Code::InvalidParameter);
        }
        let mut on = ENABLED_CALLS.lock();
        on.retain(|c| *c != cbid);
        if enable != 0 {
            on.push(cbid);
        }
        ANY_CALL.store(!on.is_empty(), Relaxed);
        Ok(())
    }

    /// There is no CUDA runtime here, so there are no calls of it to report.
    fn cuptiActivityEnableRuntimeApi(_cbid: u32, _enable: u8) { Ok(()) }

    fn cuptiActivityEnableLatencyTimestamps(enable: u8) {
        LATENCY.store(enable != 0, Relaxed);
        Ok(())
    }

    /// Only Blackwell and later have it.
    fn cuptiActivityEnableHWTrace(_enable: u8) { Err(Code::NotSupported) }

    /// A forced flush is like any other: work that has not ended is not delivered.
    fn cuptiActivityFlushAll(_flag: u32) {
        must_be_whole();
        deliver(true)
    }

    /// Full buffers are completed anyway, so this changes nothing.
    fn cuptiActivityFlushPeriod(_ms: u32) { Ok(()) }

    fn cuptiActivityGetNextRecord(buffer: Out<u8>, valid: usize, record: Out<Out<u8>>) {
        if buffer.is_null() {
            return Err(Code::InvalidParameter);
        }
        let last = record.get()?;
        let offset = match last.is_null() {
            true => 0,
            false => {
                let size = size_of_kind(last.cast::<u32>(0).get()?).ok_or(Code::InvalidKind)?;
                last.address().wrapping_sub(buffer.address()) + size
            }
        };
        if offset + size_of::<u32>() > valid {
            return Err(Code::MaxLimitReached);
        }
        let size = size_of_kind(buffer.cast::<u32>(offset).get()?).ok_or(Code::InvalidKind)?;
        if offset + size > valid {
            return Err(Code::MaxLimitReached);
        }
        Ok(record.put(buffer.cast(offset))?)
    }

    fn cuptiActivityGetNumDroppedRecords(_context: usize, _stream: u32, to: Out<usize>) {
        if to.is_null() {
            return Err(Code::InvalidParameter);
        }
        Ok(to.put(DROPPED.swap(0, Relaxed) as usize)?)
    }

    fn cuptiActivitySetAttribute(of: u32, size: Out<usize>, value: Out<u8>) {
        let expected = attribute(of).ok_or(Code::InvalidParameter)?.len();
        if size.get()? < expected {
            return Err(Code::ParameterSizeNotSufficient);
        }
        let bytes = (0..expected).map(|i| value.get_at(i)).collect::<Result<Vec<u8>, Null>>()?;
        ATTRIBUTES.lock().get_or_insert_default().insert(of, bytes);
        Ok(())
    }

    fn cuptiActivityGetAttribute(of: u32, size: Out<usize>, value: Out<u8>) {
        let set = attribute(of).ok_or(Code::InvalidParameter)?;
        let room = size.get()?;
        size.put(set.len())?;
        if room < set.len() {
            return Err(Code::ParameterSizeNotSufficient);
        }
        for (i, byte) in set.iter().enumerate() {
            value.put_at(i, *byte)?;
        }
        Ok(())
    }
}
