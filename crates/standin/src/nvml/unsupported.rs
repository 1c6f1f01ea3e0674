//! Functions that exist in the real library and are not scripted.

use super::Code;
use super::handle::initialized;

/// Defines functions that only return NOT_SUPPORTED. They read no argument, so callers may pass any
/// number of them (in the C calling conventions of Linux the caller cleans up).
macro_rules! unsupported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            match initialized() {
                Ok(_) => Code::NotSupported as u32,
                Err(code) => code as u32,
            }
        }
    )*};
}

unsupported! {
    nvmlDeviceGetFanSpeed nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetNumFans
    nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderSessions nvmlDeviceGetEncoderCapacity
    nvmlDeviceGetFBCStats nvmlDeviceGetFBCSessions
    nvmlDeviceGetDetailedEccErrors nvmlDeviceGetComputeMode nvmlDeviceGetPersistenceMode
    nvmlDeviceGetPowerState nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetPowerManagementLimitConstraints nvmlDeviceGetAccountingMode
    nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats
    nvmlDeviceGetNvLinkUtilizationCounter nvmlDeviceGetNvLinkUtilizationControl
    nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetTopologyCommonAncestor
    nvmlDeviceGetP2PStatus nvmlDeviceGetAttributes_v2 nvmlDeviceGetVbiosVersion
    nvmlDeviceGetInforomVersion nvmlDeviceGetInforomImageVersion nvmlDeviceGetBoardId
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetNumGpuCores nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetPowerSource nvmlDeviceGetIrqNum nvmlDeviceGetBusType
    nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetMinMaxClockOfPState
    nvmlDeviceGetDisplayMode nvmlDeviceGetDisplayActive nvmlDeviceGetMultiGpuBoard
    nvmlDeviceGetGspFirmwareMode nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetMemoryAffinity nvmlDeviceSetPersistenceMode
    nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet
    nvmlGpmMetricsGet
}
