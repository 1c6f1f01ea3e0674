//! Memory of devices and pinned memory of the host, copies, and setting memory.

use std::ffi::{c_uint, c_void};

use gpuwhy_testkit::gpu::Quantity;

use super::driver::{Handle, Node, Peer, driver, gpu_of, working};
use super::execute::executes;
use super::submit::Call;
use super::{Code, Status, status};
use crate::c::Out;
use crate::cupti::{CopyKind, MemoryKind, cbid};
use crate::machine::{now, pid};

fn allocate_host(to: Out<usize>, bytes: usize) -> Status {
    if bytes == 0 {
        return Err(Code::InvalidValue);
    }
    let mut driver = driver()?;
    // SAFETY: the arguments are numbers; the result is checked below.
    let at = unsafe { libc::aligned_alloc(4096, bytes.next_multiple_of(4096)) };
    if at.is_null() {
        return Err(Code::OutOfMemory);
    }
    driver.pinned.insert(at as usize, bytes);
    Ok(to.put(at as usize)?)
}

/// A copy between host and device. The caller waits for a copy from or to pageable
/// memory, since the driver stages it.
fn copy(
    cbid: u32,
    kind: CopyKind,
    host: usize,
    bytes: usize,
    stream: Handle,
    wait: bool,
) -> Status {
    let call = Call::begin(cbid);
    let submit = || {
        let mut driver = driver()?;
        let host = driver.host_kind(host);
        let (from, to) = match kind {
            CopyKind::ToDevice => (host, MemoryKind::Device),
            CopyKind::ToHost => (MemoryKind::Device, host),
            CopyKind::Within => (MemoryKind::Device, MemoryKind::Device),
        };
        let node = Node::Copy { kind, from, to, bytes: bytes as u64, peer: None };
        let room = driver.submit(stream, node, call.correlation)?;
        let (stream, _) = driver.stream(stream)?;
        let staged = kind != CopyKind::Within && host == MemoryKind::Pageable;
        let waits = stream.capture.is_none() && (wait || staged);
        Ok(if waits { stream.until } else { room })
    };
    let done = submit();
    call.end(done)
}

/// The bytes of a copy, where memory holds bytes.
fn to_device(to: u64, from: usize, bytes: usize) -> Status {
    if !executes() {
        return Ok(());
    }
    let bytes = Out::<u8>::at(from).bytes(bytes)?;
    driver()?.write(to, &bytes)
}

fn to_host(to: usize, from: u64, bytes: usize) -> Status {
    if !executes() {
        return Ok(());
    }
    let bytes = driver()?.read(from, bytes)?;
    Ok(Out::<u8>::at(to).put_bytes(&bytes)?)
}

fn within(to: u64, from: u64, bytes: usize) -> Status {
    if !executes() {
        return Ok(());
    }
    let mut driver = driver()?;
    let bytes = driver.read(from, bytes)?;
    driver.write(to, &bytes)
}

exported! {
    fn cuMemAlloc_v2(to: Out<u64>, bytes: usize) {
        let mut driver = driver()?;
        let (_, context) = driver.current()?;
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        if executes() {
            return Ok(to.put(driver.allocate(bytes as u64)?)?);
        }
        let bytes = (bytes as u64).next_multiple_of(2 << 20);
        if !working(context.device)?.allocate(pid(), bytes, now()) {
            return Err(Code::OutOfMemory);
        }
        let after = driver.memory.last_key_value().map_or(0x7f00_0000_0000, |(at, m)| at + m.0);
        driver.memory.insert(after, (bytes, context.device));
        Ok(to.put(after)?)
    }

    fn cuMemFree_v2(at: u64) {
        if executes() {
            return driver()?.free(at);
        }
        let (bytes, device) = driver()?.memory.remove(&at).ok_or(Code::InvalidValue)?;
        gpu_of(device)?.release(pid(), bytes);
        Ok(())
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (_, context) = driver()?.current()?;
        let gpu = working(context.device)?;
        let bytes = gpu.get(Quantity::MemoryTotal);
        free.put(bytes.saturating_sub(gpu.memory_used()) as usize)?;
        Ok(total.put(bytes as usize)?)
    }

    fn cuMemAllocHost_v2(to: Out<usize>, bytes: usize) { allocate_host(to, bytes) }
    fn cuMemAllocHost(to: Out<usize>, bytes: usize) { allocate_host(to, bytes) }
    fn cuMemHostAlloc(to: Out<usize>, bytes: usize, _flags: c_uint) { allocate_host(to, bytes) }

    fn cuMemFreeHost(at: usize) {
        driver()?.pinned.remove(&at).ok_or(Code::InvalidValue)?;
        // SAFETY: it was in the table, so `allocate_host` made it, and it was not freed yet.
        unsafe { libc::free(at as *mut c_void) };
        Ok(())
    }

    fn cuMemHostRegister_v2(at: usize, bytes: usize, _flags: c_uint) {
        let mut driver = driver()?;
        let (_, context) = driver.current()?;
        if bytes == 0 || driver.registered.contains_key(&at) {
            return Err(Code::InvalidValue);
        }
        let device = if executes() { driver.allocate(bytes as u64)? } else { at as u64 };
        driver.pinned.insert(at, bytes);
        driver.registered.insert(at, (device, context.device));
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(to: Out<u64>, at: usize, _flags: c_uint) {
        let found = driver()?.registered.get(&at).map(|(device, _)| *device);
        Ok(to.put(found.ok_or(Code::InvalidValue)?)?)
    }

    fn cuMemHostUnregister(at: usize) {
        let mut driver = driver()?;
        let (device, _) = driver.registered.remove(&at).ok_or(Code::InvalidValue)?;
        driver.pinned.remove(&at);
        if executes() { driver.free(device) } else { Ok(()) }
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: Handle) {
        to_device(to, from, bytes)?;
        copy(cbid::COPY_TO_DEVICE_ASYNC, CopyKind::ToDevice, from, bytes, stream, false)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: Handle) {
        to_host(to, from, bytes)?;
        copy(cbid::COPY_TO_HOST_ASYNC, CopyKind::ToHost, to, bytes, stream, false)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) {
        to_device(to, from, bytes)?;
        copy(cbid::COPY_TO_DEVICE, CopyKind::ToDevice, from, bytes, 0, true)
    }

    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) {
        to_host(to, from, bytes)?;
        copy(cbid::COPY_TO_HOST, CopyKind::ToHost, to, bytes, 0, true)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        within(to, from, bytes)?;
        copy(cbid::COPY_WITHIN_ASYNC, CopyKind::Within, 0, bytes, stream, false)
    }

    fn cuMemcpyPeerAsync(
        _to: u64, to_context: Handle, _from: u64, from_context: Handle, bytes: usize,
        stream: Handle,
    ) {
        let call = Call::begin(cbid::COPY_PEER_ASYNC);
        let submit = || {
            let mut driver = driver()?;
            let context = |at| driver.contexts.get(at).copied().ok_or(Code::InvalidContext);
            let peer = Peer { source: context(&from_context)?, target: context(&to_context)? };
            let node = Node::Copy {
                kind: CopyKind::Within,
                from: MemoryKind::Device,
                to: MemoryKind::Device,
                bytes: bytes as u64,
                peer: Some(peer),
            };
            driver.submit(stream, node, call.correlation)
        };
        let done = submit();
        call.end(done)
    }

    fn cuMemsetD8Async(at: u64, value: u8, bytes: usize, stream: Handle) {
        if executes() {
            driver()?.write(at, &vec![value; bytes])?;
        }
        let call = Call::begin(cbid::MEMSET_ASYNC);
        let node = Node::Set { value: value.into(), bytes: bytes as u64 };
        let done = driver().and_then(|mut d| d.submit(stream, node, call.correlation));
        call.end(done)
    }
}
