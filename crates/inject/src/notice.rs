//! What a library has to say about what it can see.

use gpuwhy_wire::Event;

/// What a notice is about; the number is that of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// No CUPTI that can be used.
    NoCupti = 1,
    /// Another profiler uses CUPTI.
    AnotherProfiler = 2,
    /// Another profiler has taken CUPTI's buffers.
    CallbacksReplaced = 3,
    /// A kind of record cannot be had.
    KindRefused = 4,
    /// Records have no times.
    NoTimes = 5,
    /// All buffers are CUPTI's.
    BuffersFull = 6,
    /// CUPTI dropped records.
    RecordsDropped = 7,
}

/// Says so, if a collector listens.
pub fn tell(code: Code, text: &str, value: Option<f64>) {
    crate::link::with(|ring| {
        let name = ring.name(text);
        let at = gpuwhy_wire::now();
        ring.write(Event::Notice { name, code: code as u32, value, at });
    });
}
