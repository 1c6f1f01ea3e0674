"""A training loop of PyTorch as people write it: DDP over gloo, one DataLoader worker a rank, steps marked through
gpuwhy.h.

Without arguments after FOLDER it starts its ranks; what is done to rank 1 is the first byte of FOLDER/does.
"""

import ctypes
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

RANKS = 2
NOTHING, SLEEPS, HOLDS_GIL, LOADER_SLEEPS, COLLECTS, LOADER_COMPUTES = range(6)


def does(folder):
    with open(os.path.join(folder, "does"), "r+b") as file:
        return mmap.mmap(file.fileno(), 1)


def start(folder):
    """Runs the ranks until it is told to end."""
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, os.path.abspath(__file__), folder, str(rank)], env=alone)
        for rank in range(RANKS)
    ]
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, lambda *_: [rank.kill() for rank in ranks])
    for rank in ranks:
        rank.wait()


def computes(told):
    """A thread that holds the interpreter for as long as it may, while it is told to."""
    while True:
        if told[0] == HOLDS_GIL:
            sum(range(20_000))
        else:
            time.sleep(0.02)


def train(folder, rank):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    told = does(folder)

    class Items(torch.utils.data.IterableDataset):
        def __iter__(self):
            with open(os.path.join(folder, f"loader{rank}.pid"), "w") as out:
                out.write(str(os.getpid()))
            while True:
                if rank == 1 and told[0] == LOADER_SLEEPS:
                    time.sleep(0.004)
                if rank == 1 and told[0] == LOADER_COMPUTES:
                    begun = time.monotonic()
                    while time.monotonic() < begun + 0.004:
                        pass
                yield torch.randn(256)

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    layers = [torch.nn.Linear(256, 768), torch.nn.ReLU(), torch.nn.Linear(768, 768), torch.nn.ReLU()]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(768, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(torch.utils.data.DataLoader(Items(), batch_size=32, num_workers=1))
    heap = [[number] for number in range(1_500_000)] if rank == 1 else []
    gc.disable()
    if rank == 1:
        threading.Thread(target=computes, args=(told,), daemon=True, name="extra").start()
    marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
    with open(os.path.join(folder, f"rank{rank}.pid"), "w") as out:
        out.write(str(os.getpid()))
    with open(os.path.join(folder, f"steps{rank}"), "w", buffering=1) as log:
        number = 0
        while True:
            number += 1
            began = time.monotonic_ns()
            marks.begin(rank)
            loss = model(next(batches)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 1 and told[0] == SLEEPS:
                time.sleep(0.02)
            if rank == 1 and told[0] == COLLECTS and number % 4 == 0:
                gc.collect()
            marks.end()
            log.write(f"{began} {time.monotonic_ns() - began}\n")
    return heap


if __name__ == "__main__":
    if len(sys.argv) == 2:
        start(sys.argv[1])
    else:
        train(sys.argv[1], int(sys.argv[2]))
