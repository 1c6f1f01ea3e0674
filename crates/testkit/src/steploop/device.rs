//! A simulated GPU: one stream, and a clock that only the control page changes.
//!
//! It only computes when a kernel would run, so the same launches give the same kernels on any
//! machine. As on a real stream, a kernel starts when it is launched or when the one before it has
//! ended, whichever is later.

/// A kernel. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Ties it to its launch.
    pub correlation: u64,
    /// When it was launched.
    pub launched: u64,
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// The stream of one rank.
#[derive(Clone, Debug, Default)]
pub struct Device {
    free: u64,
    launches: u64,
}

impl Device {
    /// Nominal clock, that of an A100 at boost, MHz.
    pub const MHZ: f64 = 1410.0;

    /// Launches a kernel of `work` ns at the nominal clock; `rate` is the present clock relative to
    /// it.
    pub fn launch(&mut self, now: u64, work: u64, rate: f64) -> Kernel {
        let start = now.max(self.free);
        let end = start + (work as f64 / rate.max(0.01)) as u64;
        self.free = end;
        self.launches += 1;
        Kernel { correlation: self.launches, launched: now, start, end }
    }

    /// When everything that was launched has ended.
    pub fn idle_at(&self) -> u64 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_queue_on_the_stream_and_slow_with_the_clock() {
        let mut device = Device::default();
        let times = |k: Kernel| (k.correlation, k.start, k.end);
        assert_eq!(times(device.launch(100, 50, 1.0)), (1, 100, 150));
        assert_eq!(times(device.launch(110, 50, 0.5)), (2, 150, 250));
        assert_eq!(times(device.launch(400, 50, 1.0)), (3, 400, 450));
        assert_eq!(device.idle_at(), 450);
    }
}
