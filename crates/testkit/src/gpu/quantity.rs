//! The values and counters of a GPU, and the reasons why its clock is lowered.

/// Values of a GPU that stay as they are set. The discriminant is the index in the shared page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Quantity {
    /// SM clock now, MHz.
    SmClock,
    /// SM clock at which work takes its nominal time, MHz.
    SmClockMax,
    /// Memory clock now, MHz.
    MemoryClock,
    /// Highest memory clock, MHz.
    MemoryClockMax,
    /// GPU temperature, °C.
    Temperature,
    /// Power draw, mW; 0 means that it follows from utilisation.
    Power,
    /// Enforced power limit, mW.
    PowerLimit,
    /// Bits of `nvmlClocksEventReason*`, without GpuIdle, which follows from utilisation.
    Reasons,
    /// PCIe generation now.
    PcieGeneration,
    /// Highest PCIe generation.
    PcieGenerationMax,
    /// PCIe lanes now.
    PcieWidth,
    /// Highest number of PCIe lanes.
    PcieWidthMax,
    /// Whether PCIe replays its packets: a quarter of the bandwidth, and the counter grows.
    PcieReplaying,
    /// PCIe replays since the start.
    PcieReplays,
    /// Overflows of the counter of PCIe replays.
    PcieReplayRollovers,
    /// How often the PCIe link went from L0 to recovery.
    PcieRecoveries,
    /// Correctable PCIe errors.
    PcieCorrectable,
    /// Bytes that the GPU has sent over PCIe.
    PcieTx,
    /// Bytes that the GPU has received over PCIe.
    PcieRx,
    /// Bandwidth of a copy over PCIe when nothing is wrong, bytes/s.
    Bandwidth,
    /// Active NVLinks.
    NvLinks,
    /// Data sent over NVLink, KiB.
    NvLinkTx,
    /// Data received over NVLink, KiB.
    NvLinkRx,
    /// NVLink replays at the data link layer.
    NvLinkReplays,
    /// NVLink recoveries.
    NvLinkRecoveries,
    /// NVLink CRC errors.
    NvLinkCrc,
    /// Whether ECC is on.
    Ecc,
    /// Corrected errors since the driver was loaded.
    EccCorrected,
    /// Uncorrected errors since the driver was loaded.
    EccUncorrected,
    /// Memory rows remapped for corrected errors.
    RemappedCorrectable,
    /// Memory rows remapped for uncorrected errors.
    RemappedUncorrectable,
    /// Whether a row remapping waits for a reset.
    RemapPending,
    /// Whether a row remapping has failed.
    RemapFailed,
    /// Retired pages.
    RetiredPages,
    /// Bytes of device memory.
    MemoryTotal,
    /// Whether MIG is on.
    Mig,
}

/// Time since the start for which a reason lowered the clock: NVML's cumulative counters of
/// throttling, ns. The numbers are those of NVML's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ThrottleTime {
    /// Limited by power (field 74).
    Power,
    /// Limited by temperature (75).
    Thermal,
    /// Held at the clock of a group, sync boost (76).
    SyncBoost,
    /// Software thermal slowdown (269).
    SwThermal,
    /// Hardware thermal slowdown (270).
    HwThermal,
    /// Power brake slowdown (271).
    PowerBrake,
}

impl Quantity {
    /// Number of quantities.
    pub(super) const COUNT: usize = Quantity::Mig as usize + 1;
}

impl ThrottleTime {
    /// All counters, in the order of the shared page.
    pub(super) const ALL: [ThrottleTime; 6] = [
        ThrottleTime::Power,
        ThrottleTime::Thermal,
        ThrottleTime::SyncBoost,
        ThrottleTime::SwThermal,
        ThrottleTime::HwThermal,
        ThrottleTime::PowerBrake,
    ];

    /// Whether it grows while the clock is lowered for these [`reason`]s.
    pub(super) fn grows(self, reasons: u64) -> bool {
        let bits = match self {
            ThrottleTime::Power => reason::SW_POWER_CAP,
            ThrottleTime::Thermal => reason::SW_THERMAL | reason::HW_THERMAL,
            ThrottleTime::SyncBoost => reason::SYNC_BOOST,
            ThrottleTime::SwThermal => reason::SW_THERMAL,
            ThrottleTime::HwThermal => reason::HW_THERMAL,
            ThrottleTime::PowerBrake => reason::POWER_BRAKE,
        };
        reasons & bits != 0
    }
}

/// Why clocks are lower than they could be: bits of `nvmlDeviceGetCurrentClocksEventReasons`.
pub mod reason {
    /// No work runs.
    pub const IDLE: u64 = 0x1;
    /// The power limit holds the clock down.
    pub const SW_POWER_CAP: u64 = 0x4;
    /// Hardware slowdown, set together with either hardware reason below.
    pub const HW_SLOWDOWN: u64 = 0x8;
    /// The clock follows the slowest GPU of a group.
    pub const SYNC_BOOST: u64 = 0x10;
    /// The driver lowers the clock for temperature.
    pub const SW_THERMAL: u64 = 0x20;
    /// The hardware lowers the clock for temperature.
    pub const HW_THERMAL: u64 = 0x40;
    /// The server's power supply demands less power (power brake).
    pub const POWER_BRAKE: u64 = 0x80;
}
