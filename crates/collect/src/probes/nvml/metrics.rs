//! What is read of a GPU: each metric once, with its name, its unit, how often it is read, and how.

use gpuwhy_schema::{Measure, names};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, Sampling, TemperatureSensor,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::sys_exports::field_id as id;

/// How often a metric is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Each round, ten times a second: values that change quickly.
    Tenth,
    /// Once a second: values that drift, and values that the driver renews once a second.
    Second,
    /// Every ten seconds: values that hardly change.
    Rare,
}

/// How a metric is read; ways that a GPU does not offer are skipped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// A field; all fields are read by one call. The factor converts to the metric's unit.
    Field(u32, f64),
    /// The driver's own buffer of samples, each with its time. The factor converts to the unit.
    Buffer(Sampling, f64),
    /// A call of its own, which returns the metric's unit.
    Call(fn(&Device<'_>) -> Result<f64, NvmlError>),
}

/// One value of a GPU that is read.
#[derive(Debug)]
pub(super) struct Metric {
    /// The track's name.
    pub name: &'static str,
    /// Its unit, in UCUM.
    pub unit: &'static str,
    /// What kind of counter it is.
    pub measure: Measure,
    /// Whether a row is written only when the value has changed.
    pub on_change: bool,
    /// How often it is read.
    pub pace: Pace,
    /// Whether a 32-bit total that became less has overflowed, and was not reset.
    pub wraps: bool,
    /// Another metric; this one is read only where that one is not offered.
    pub instead_of: Option<&'static str>,
    /// How it is read, the best way first.
    pub ways: &'static [Way],
}

/// The place of a metric in [`METRICS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetricId(pub usize);

impl MetricId {
    /// The metric.
    pub fn metric(self) -> &'static Metric {
        &METRICS[self.0]
    }
}

/// The metric of this name.
pub(super) fn metric_named(name: &str) -> Option<MetricId> {
    METRICS.iter().position(|m| m.name == name).map(MetricId)
}

const fn gauge(name: &'static str, unit: &'static str, ways: &'static [Way]) -> Metric {
    Metric {
        name,
        unit,
        measure: Measure::Gauge,
        on_change: false,
        pace: Pace::Tenth,
        wraps: false,
        instead_of: None,
        ways,
    }
}

/// A gauge that hardly ever changes.
const fn constant(
    name: &'static str,
    unit: &'static str,
    pace: Pace,
    ways: &'static [Way],
) -> Metric {
    Metric { on_change: true, pace, ..gauge(name, unit, ways) }
}

const fn total(name: &'static str, unit: &'static str, ways: &'static [Way]) -> Metric {
    Metric { measure: Measure::Total, on_change: true, ..gauge(name, unit, ways) }
}

const fn slow(metric: Metric) -> Metric {
    Metric { pace: Pace::Second, ..metric }
}

const fn wraps(metric: Metric) -> Metric {
    Metric { wraps: true, ..metric }
}

/// For GPUs that do not offer `other`.
const fn instead_of(other: &'static str, metric: Metric) -> Metric {
    Metric { instead_of: Some(other), ..metric }
}

/// Nanoseconds of clock throttling. The wrapper cuts fields of the type `unsigned long` to 32 bits,
/// which is 4.3 s.
const fn throttled(name: &'static str, ways: &'static [Way]) -> Metric {
    wraps(total(name, "ns", ways))
}

/// The same by the older call.
macro_rules! violation {
    ($policy:ident) => {
        Call(|d| d.violation_status(PerformancePolicy::$policy).map(|v| v.violation_time as f64))
    };
}

/// A total of errors and the like.
const fn count(name: &'static str, way: &'static [Way]) -> Metric {
    total(name, "1", way)
}

use Way::{Buffer, Call, Field};

/// NVLink counts in KiB.
const KIB: f64 = 1024.0;

/// Everything that is read.
///
/// Clocks are polled, since the driver's buffer of them has a sample every 140 ms (`nvidia-smi -q
/// -d CLOCK`: 100 samples in 14 s) and a poll reads the present clock; power has a sample every 20 ms
/// in its buffer and 1 s averages elsewhere, so the buffer comes first. A call for a PCIe rate waits
/// 20 ms, so that these are read only where there are no byte counters.
pub(super) const METRICS: &[Metric] = &[
    gauge(
        names::SM_CLOCK,
        "MHz",
        &[Call(|d| d.clock_info(Clock::SM).map(f64::from)), Buffer(Sampling::ProcessorClock, 1.0)],
    ),
    gauge(
        names::MEM_CLOCK,
        "MHz",
        &[Call(|d| d.clock_info(Clock::Memory).map(f64::from)), Buffer(Sampling::MemoryClock, 1.0)],
    ),
    // Each second, so that any part of a trace has the maximum to which clocks are compared.
    slow(gauge(
        names::SM_CLOCK_MAX,
        "MHz",
        &[Call(|d| d.max_clock_info(Clock::SM).map(f64::from))],
    )),
    gauge(
        names::CLOCK_EVENT_REASONS,
        "1",
        &[Call(|d| d.current_throttle_reasons().map(|reasons| reasons.bits() as f64))],
    ),
    throttled(
        names::THROTTLED_POWER,
        &[Field(id::NVML_FI_DEV_PERF_POLICY_POWER, 1.0), violation!(Power)],
    ),
    throttled(
        names::THROTTLED_THERMAL,
        &[Field(id::NVML_FI_DEV_PERF_POLICY_THERMAL, 1.0), violation!(Thermal)],
    ),
    throttled(
        names::THROTTLED_SYNC_BOOST,
        &[Field(id::NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 1.0), violation!(SyncBoost)],
    ),
    throttled(
        names::THROTTLED_BOARD,
        &[Field(id::NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, 1.0), violation!(BoardLimit)],
    ),
    throttled(
        names::THROTTLED_LOW_UTILIZATION,
        &[Field(id::NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, 1.0), violation!(LowUtilization)],
    ),
    throttled(
        names::THROTTLED_RELIABILITY,
        &[Field(id::NVML_FI_DEV_PERF_POLICY_RELIABILITY, 1.0), violation!(Reliability)],
    ),
    // The wrapper numbers these as NVML 12 did and translates for drivers from 580.82 on, where they
    // are 269 to 271.
    throttled(
        names::THROTTLED_SW_THERMAL,
        &[Field(id::NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 1.0)],
    ),
    throttled(
        names::THROTTLED_HW_THERMAL,
        &[Field(id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, 1.0)],
    ),
    throttled(
        names::THROTTLED_POWER_BRAKE,
        &[Field(id::NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, 1.0)],
    ),
    gauge(
        names::GPU_POWER,
        "W",
        &[
            Buffer(Sampling::Power, 1e-3),
            Field(id::NVML_FI_DEV_POWER_INSTANT, 1e-3),
            Call(|d| d.power_usage().map(|mw| f64::from(mw) / 1e3)),
        ],
    ),
    constant(
        names::GPU_POWER_LIMIT,
        "W",
        Pace::Second,
        &[
            Call(|d| d.enforced_power_limit().map(|mw| f64::from(mw) / 1e3)),
            Call(|d| d.power_management_limit().map(|mw| f64::from(mw) / 1e3)),
        ],
    ),
    slow(gauge(
        names::GPU_TEMPERATURE,
        "Cel",
        &[Call(|d| d.temperature(TemperatureSensor::Gpu).map(f64::from))],
    )),
    slow(gauge(names::GPU_MEMORY_TEMPERATURE, "Cel", &[Field(id::NVML_FI_DEV_MEMORY_TEMP, 1.0)])),
    gauge(
        names::GPU_UTILIZATION,
        "%",
        &[
            Buffer(Sampling::GpuUtilization, 1.0),
            Call(|d| d.utilization_rates().map(|u| f64::from(u.gpu))),
        ],
    ),
    gauge(
        names::GPU_MEMORY_UTILIZATION,
        "%",
        &[
            Buffer(Sampling::MemoryUtilization, 1.0),
            Call(|d| d.utilization_rates().map(|u| f64::from(u.memory))),
        ],
    ),
    slow(gauge(
        names::GPU_MEMORY_USED,
        "By",
        &[Call(|d| d.memory_info().map(|memory| memory.used as f64))],
    )),
    constant(
        names::GPU_MEMORY_TOTAL,
        "By",
        Pace::Rare,
        &[Call(|d| d.memory_info().map(|memory| memory.total as f64))],
    ),
    constant(
        names::GPU_RECOVERY_ACTION,
        "1",
        Pace::Second,
        &[Field(id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1.0)],
    ),
    count(
        names::PCIE_REPLAY,
        &[
            Field(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER, 1.0),
            Call(|d| d.pcie_replay_counter().map(f64::from)),
        ],
    ),
    count(names::PCIE_REPLAY_ROLLOVER, &[Field(id::NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, 1.0)]),
    count(names::PCIE_RECOVERY, &[Field(id::NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, 1.0)]),
    count(names::PCIE_CORRECTABLE, &[Field(id::NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 1.0)]),
    count(names::PCIE_NAKS_RECEIVED, &[Field(id::NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, 1.0)]),
    count(names::PCIE_NAKS_SENT, &[Field(id::NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, 1.0)]),
    count(names::PCIE_RECEIVER_ERROR, &[Field(id::NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, 1.0)]),
    count(names::PCIE_BAD_TLP, &[Field(id::NVML_FI_DEV_PCIE_COUNT_BAD_TLP, 1.0)]),
    count(names::PCIE_BAD_DLLP, &[Field(id::NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, 1.0)]),
    count(names::PCIE_NON_FATAL, &[Field(id::NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, 1.0)]),
    count(names::PCIE_FATAL, &[Field(id::NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, 1.0)]),
    count(
        names::PCIE_UNSUPPORTED_REQUEST,
        &[Field(id::NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, 1.0)],
    ),
    count(names::PCIE_LCRC_ERROR, &[Field(id::NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, 1.0)]),
    count(names::PCIE_LANE_ERROR, &[Field(id::NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, 1.0)]),
    wraps(total(names::PCIE_TX, "By", &[Field(id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1.0)])),
    wraps(total(names::PCIE_RX, "By", &[Field(id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1.0)])),
    instead_of(
        names::PCIE_TX,
        slow(gauge(
            names::PCIE_TX_RATE,
            "By/s",
            &[Call(|d| d.pcie_throughput(PcieUtilCounter::Send).map(|kb| f64::from(kb) * 1e3))],
        )),
    ),
    instead_of(
        names::PCIE_RX,
        slow(gauge(
            names::PCIE_RX_RATE,
            "By/s",
            &[Call(|d| d.pcie_throughput(PcieUtilCounter::Receive).map(|kb| f64::from(kb) * 1e3))],
        )),
    ),
    constant(
        names::PCIE_LINK_GEN,
        "1",
        Pace::Second,
        &[Call(|d| d.current_pcie_link_gen().map(f64::from))],
    ),
    constant(
        names::PCIE_LINK_GEN_MAX,
        "1",
        Pace::Rare,
        &[Call(|d| d.max_pcie_link_gen().map(f64::from))],
    ),
    constant(
        names::PCIE_LINK_WIDTH,
        "1",
        Pace::Second,
        &[Call(|d| d.current_pcie_link_width().map(f64::from))],
    ),
    constant(
        names::PCIE_LINK_WIDTH_MAX,
        "1",
        Pace::Rare,
        &[Call(|d| d.max_pcie_link_width().map(f64::from))],
    ),
    wraps(total(names::NVLINK_TX, "By", &[Field(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KIB)])),
    wraps(total(names::NVLINK_RX, "By", &[Field(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KIB)])),
    wraps(total(
        names::NVLINK_RAW_TX,
        "By",
        &[Field(id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, KIB)],
    )),
    wraps(total(
        names::NVLINK_RAW_RX,
        "By",
        &[Field(id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, KIB)],
    )),
    // The newer fields count one link; the older ones, which count all links, come first.
    count(
        names::NVLINK_REPLAY,
        &[
            Field(id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 1.0),
            Field(id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 1.0),
        ],
    ),
    count(
        names::NVLINK_RECOVERY,
        &[
            Field(id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 1.0),
            Field(id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, 1.0),
        ],
    ),
    count(
        names::NVLINK_CRC,
        &[
            Field(id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 1.0),
            Field(id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 1.0),
        ],
    ),
    slow(count(
        names::ECC_CORRECTED,
        &[Call(|d| {
            d.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile).map(|n| n as f64)
        })],
    )),
    slow(count(
        names::ECC_UNCORRECTED,
        &[Call(|d| {
            d.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).map(|n| n as f64)
        })],
    )),
    slow(count(names::ECC_REMAPPED_CORRECTABLE, &[Field(id::NVML_FI_DEV_REMAPPED_COR, 1.0)])),
    slow(count(names::ECC_REMAPPED_UNCORRECTABLE, &[Field(id::NVML_FI_DEV_REMAPPED_UNC, 1.0)])),
    constant(
        names::ECC_REMAP_PENDING,
        "1",
        Pace::Second,
        &[Field(id::NVML_FI_DEV_REMAPPED_PENDING, 1.0)],
    ),
    constant(
        names::ECC_REMAP_FAILED,
        "1",
        Pace::Second,
        &[Field(id::NVML_FI_DEV_REMAPPED_FAILURE, 1.0)],
    ),
];
