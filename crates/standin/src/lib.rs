//! Stand-ins for `libnvidia-ml.so.1`, `libcuda.so.1` and `libcupti.so`, over one scripted device.
