//! What the kernel says about the run time of BPF programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// What the kernel says of the program behind `fd`.
pub(super) fn info(fd: &impl AsFd) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let (mut len, fd) = (size_of_val(&info) as u32, fd.as_fd().as_raw_fd());
    // SAFETY: `info` is writable for `len` bytes during the call. Its pointer members are null
    // with counts of 0, so the kernel writes to nothing else.
    let rc = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut len) };
    (rc == 0).then_some(info)
}

/// Makes the kernel measure the run time of BPF programs while the descriptor is open.
///
/// # Errors
/// Needs CAP_SYS_ADMIN.
pub(crate) fn measure() -> io::Result<OwnedFd> {
    // SAFETY: takes a plain number and returns a descriptor or a negative error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor was just opened and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
