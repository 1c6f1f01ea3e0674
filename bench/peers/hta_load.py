"""Loads a trace of the PyTorch profiler with Holistic Trace Analysis and sums its kernels."""

import os
import shutil
import sys
import tempfile

from hta.trace_analysis import TraceAnalysis

with tempfile.TemporaryDirectory() as directory:
    shutil.copy(sys.argv[1], os.path.join(directory, "rank-0.json"))
    analysis = TraceAnalysis(trace_dir=directory)
    print(analysis.get_temporal_breakdown(visualize=False))
