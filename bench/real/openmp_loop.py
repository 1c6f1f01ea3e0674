"""Element-wise work of PyTorch on two threads of OpenMP that wait for each other by running; steps marked through
gpuwhy.h."""

import ctypes
import os
import sys
import time

# Read when the library is loaded: two threads, each on a CPU of its own, that never sleep.
THREADS = {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "true", "OMP_PLACES": "{0},{1}"}
WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "infinite"}
if "set" not in sys.argv:
    os.environ.update(THREADS | WAITING)
    os.execv(sys.executable, [sys.executable, *sys.argv, "set"])

import torch  # noqa: E402

folder = sys.argv[1]
marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
torch.set_num_threads(2)
values = torch.rand(400_000)
with open(os.path.join(folder, "steps"), "w", buffering=1) as log:
    while True:
        began = time.monotonic_ns()
        marks.begin(0)
        for _ in range(4):
            torch.sin(values)
        marks.end()
        log.write(f"{began} {time.monotonic_ns() - began}\n")
        time.sleep(0.004)
