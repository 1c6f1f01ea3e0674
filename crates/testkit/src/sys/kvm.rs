//! A virtual machine with one virtual CPU that begins in real mode, by the kernel's own interface.

use std::io;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use super::Memory;

/// What the machine has of memory, from address 0.
const MEMORY: usize = 64 << 10;
/// Where its code lies and begins.
const CODE: usize = 0x1000;

/// Why a virtual CPU stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal came, in which the kernel lets go of it: also where it has halted.
    Interrupted,
    /// It wrote to this port.
    Wrote(u16),
    /// Something that no code of ours does.
    Other(String),
}

/// A virtual machine.
pub struct Machine {
    // The CPU before the machine, the machine before its memory: so they are dropped.
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: Memory,
}

impl Machine {
    /// One that will run this code. The kernel has its interrupt controller, so that it halts within the call that runs it.
    ///
    /// # Errors
    /// There is no /dev/kvm, it may not be used, or the code is too long.
    pub fn new(code: &[u8]) -> io::Result<Machine> {
        let mut memory = Memory::new(MEMORY)?;
        if !memory.write(CODE, code) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let vm = Kvm::new()?.create_vm()?;
        vm.create_irq_chip()?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: memory.address(),
        };
        // SAFETY: the mapping has this size, and is dropped after the machine and its CPU.
        unsafe { vm.set_user_memory_region(region)? };
        let vcpu = vm.create_vcpu(0)?;
        let mut segments = vcpu.get_sregs()?;
        (segments.cs.base, segments.cs.selector) = (0, 0);
        vcpu.set_sregs(&segments)?;
        let mut registers = vcpu.get_regs()?;
        // Bit 1 of the flags is always set.
        (registers.rip, registers.rflags) = (CODE as u64, 2);
        vcpu.set_regs(&registers)?;
        Ok(Machine { vcpu, _vm: vm, _memory: memory })
    }

    /// Runs until it stops.
    ///
    /// # Errors
    /// The kernel cannot run it.
    pub fn run(&mut self) -> io::Result<Stop> {
        match self.vcpu.run() {
            Ok(VcpuExit::IoOut(port, _)) => Ok(Stop::Wrote(port)),
            Ok(other) => Ok(Stop::Other(format!("{other:?}"))),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                Ok(Stop::Interrupted)
            }
            Err(error) => Err(error.into()),
        }
    }
}
