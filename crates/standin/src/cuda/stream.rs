//! Streams, and capturing the launches on a stream into a graph.

use std::ffi::{c_int, c_uint};

use super::driver::{Graph, Handle, Stream, driver, handle, working};
use super::submit::Call;
use super::{Code, status};
use crate::c::Out;
use crate::cupti::cbid;
use crate::machine::now;

exported! {
    fn cuStreamCreate(to: Out<Handle>, _flags: c_uint) {
        let mut driver = driver()?;
        let (context, _) = driver.current()?;
        // In a program of one context CUPTI numbers created streams from 13.
        let id = 13 + driver.streams_made;
        driver.streams_made += 1;
        let stream = handle();
        driver.streams.insert(stream, Stream::new(context, id));
        Ok(to.put(stream)?)
    }

    fn cuStreamCreateWithPriority(to: Out<Handle>, flags: c_uint, _priority: c_int) {
        match cuStreamCreate(to, flags) {
            0 => Ok(()),
            _ => Err(Code::InvalidContext),
        }
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
