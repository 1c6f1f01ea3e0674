//! Streams, and capturing the launches on a stream into a graph.

use std::ffi::{c_int, c_uint};

use super::driver::{Graph, Handle, Stream, driver, handle, working};
use super::submit::Call;
use super::{Code, Status, status};
use crate::c::Out;
use crate::cupti::cbid;
use crate::machine::now;

/// A stream; of a priority that the device does not have, the nearest that it has.
fn create(to: Out<Handle>, priority: c_int) -> Status {
    let mut driver = driver()?;
    let (context, _) = driver.current()?;
    // In a program of one context CUPTI numbers created streams from 13.
    let id = 13 + driver.streams_made;
    driver.streams_made += 1;
    let stream = handle();
    let priority = priority.clamp(-5, 0);
    driver.streams.insert(stream, Stream { priority, ..Stream::new(context, id) });
    Ok(to.put(stream)?)
}

exported! {
    fn cuStreamCreate(to: Out<Handle>, _flags: c_uint) { create(to, 0) }

    /// Work of all priorities runs in one order; a stream tells its own.
    fn cuStreamCreateWithPriority(to: Out<Handle>, _flags: c_uint, priority: c_int) {
        create(to, priority)
    }

    fn cuStreamGetPriority(stream: Handle, to: Out<c_int>) {
        Ok(to.put(driver()?.stream(stream)?.0.priority)?)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let mut driver = driver()?;
        if driver.contexts.contains_key(&stream) {
            return Err(Code::InvalidHandle);
        }
        driver.streams.remove(&stream).map(|_| ()).ok_or(Code::InvalidHandle)
    }

    fn cuStreamSynchronize(stream: Handle) {
        let call = Call::begin(cbid::STREAM_SYNCHRONIZE);
        let until = driver().and_then(|mut driver| {
            let (stream, context) = driver.stream(stream)?;
            if stream.capture.is_some() {
                return Err(Code::CaptureUnsupported);
            }
            working(context.device)?;
            Ok(stream.until)
        });
        call.end(until)
    }

    fn cuStreamQuery(stream: Handle) {
        let mut driver = driver()?;
        let (stream, context) = driver.stream(stream)?;
        working(context.device)?;
        if stream.until > now() { Err(Code::NotReady) } else { Ok(()) }
    }

    fn cuStreamBeginCapture_v2(stream: Handle, _mode: c_uint) {
        let mut driver = driver()?;
        let (stream, _) = driver.stream(stream)?;
        if stream.capture.is_some() {
            return Err(Code::CaptureUnsupported);
        }
        stream.capture = Some(Vec::new());
        Ok(())
    }

    fn cuStreamIsCapturing(stream: Handle, to: Out<c_uint>) {
        // CU_STREAM_CAPTURE_STATUS_NONE and _ACTIVE.
        let captured = driver()?.is_capturing(stream)?;
        Ok(to.put(captured.into())?)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        // Global, thread-local, relaxed; whether work may be captured is not asked here.
        match mode.get()? {
            0..=2 => Ok(mode.put(0)?),
            _ => Err(Code::InvalidValue),
        }
    }

    fn cuStreamEndCapture(stream: Handle, to: Out<Handle>) {
        let mut driver = driver()?;
        let (stream, _) = driver.stream(stream)?;
        let nodes = stream.capture.take().ok_or(Code::InvalidValue)?;
        driver.graphs_made += 1;
        let graph = Graph { id: driver.graphs_made, nodes };
        let at = handle();
        driver.graphs.insert(at, graph);
        Ok(to.put(at)?)
    }
}
