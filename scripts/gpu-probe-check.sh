#!/usr/bin/env bash
# Device probes on a machine with an NVIDIA GPU, in ten minutes at most:
#
#   scripts/gpu-probe-check.sh [--standin]
#
# The files of bpf_conformance as kernels; whether the driver takes the images that come back, by each way to load them;
# what the device's clock and its counters cost; kernels as they are and with probes, also by where their maps lie; blocks that take their turns themselves;
# policies for managed memory that is larger than what is free; machine code that NVIDIA's Sanitizer patches; stock PyTorch and
# Triton. It is
# scripts/gpu-check.sh with other parts: `make gpu-pack` builds what it runs, and the result is
# bench/results/gpu-probes.json.
#
# --standin: the same parts over the stand-in of the driver, which executes kernels in the simulator; its times say nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
export GPUWHY_CHECK_RESULT=gpu-probes
exec scripts/gpu-check.sh "$@" --only probe-conformance,probe-swap,probe-clocks,probe-cost,probe-placement,probe-steal,probe-policy,probe-code,probe-torch
