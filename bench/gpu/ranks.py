"""Two ranks of PyTorch on one GPU, one of which is late for a while: `ranks.py SECONDS LATE_MS`.

NCCL puts several ranks on a GPU only if it is asked to, and since 2.30 (NCCL_MULTI_RANK_GPU_ENABLE). Rank 1 sleeps
in each step between 60 % and 85 % of the time. `ranks.py one` is a communicator of one rank, in which NCCL only
loads the plug-in.
"""

import json
import os
import subprocess
import sys
import tempfile
import time


def rank(rank, ranks, meet, seconds, late_ms):
    import torch
    import torch.distributed as dist

    from device import Marks

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    data = torch.ones(1 << 20, device="cuda")
    work = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    dist.all_reduce(data)
    torch.cuda.synchronize()
    if ranks == 1:
        dist.destroy_process_group()
        return
    marks, begin, taken, stop = Marks(), time.monotonic(), 0, torch.zeros(1, device="cuda")
    while True:
        at = (time.monotonic() - begin) / seconds
        marks.step(rank=rank)
        torch.mm(work, work)
        if rank == 1 and 0.6 < at < 0.85:
            time.sleep(late_ms / 1e3)
        torch.cuda.synchronize()

        def reduce():
            dist.all_reduce(data)
            torch.cuda.synchronize()

        marks.phase("allreduce", reduce)
        marks.step_end()
        data.fill_(1.0)
        taken += 1
        # All ranks leave together.
        if taken % 50 == 0:
            stop.fill_(float(at > 1))
            dist.all_reduce(stop)
            if stop.item():
                break
    print(json.dumps({"rank": rank, "pid": os.getpid(), "steps": taken}), flush=True)
    dist.destroy_process_group()


def main():
    if sys.argv[1] == "rank":
        number, ranks, meet, seconds, late_ms = sys.argv[2:]
        return rank(int(number), int(ranks), meet, float(seconds), float(late_ms))
    ranks = 1 if sys.argv[1] == "one" else 2
    seconds, late_ms = ("0", "0") if ranks == 1 else sys.argv[1:3]
    meet = tempfile.mktemp(prefix="gpuwhy-ranks-")
    children = [
        subprocess.Popen([sys.executable, os.path.abspath(__file__), "rank", str(i), str(ranks), meet, seconds, late_ms])
        for i in range(ranks)
    ]
    sys.exit(max(abs(child.wait()) for child in children))


main()
