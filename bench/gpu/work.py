"""One process of gpu-check that uses the GPU.

work.py serve            takes orders, a line each, and answers each by a line of JSON:
                         eager N, graph N (so many steps; how long they took), capture, memory;
                         `end HOW` ends the process with work on the device in flight
work.py steps S READY    marked steps for S seconds; makes the file READY when they begin
work.py hog KIND READY GO S   waits for the file GO, then disturbs for S seconds; KIND is competitor, copies or
                         power; prints when it did

With GPUWHY_CHECK_STANDIN=1 all of it runs over the stand-in.
"""

import json
import os
import signal
import sys
import time

from device import Marks, now, open_device


def say(**what):
    print(json.dumps(what), flush=True)


def touch(path):
    with open(path, "w"):
        pass


def timed(device, what, steps):
    took, begin, cpu = [], now(), time.thread_time_ns()
    for _ in range(steps):
        start = time.perf_counter_ns()
        what()
        device.wait()
        took.append(time.perf_counter_ns() - start)
    cpu, end = time.thread_time_ns() - cpu, now()
    took.sort()
    return {
        "steps": steps,
        "median_us": took[steps // 2] / 1e3,
        "mean_us": sum(took) / steps / 1e3,
        "cpu_us": cpu / steps / 1e3,
        "from_ns": begin,
        "to_ns": end,
    }


def end(device, how):
    """Ends this process in one of ten ways, with work on the device that has not ended."""
    device.eager()
    device.replay()
    signals = {"term": signal.SIGTERM, "int": signal.SIGINT, "kill": signal.SIGKILL, "segv": signal.SIGSEGV}
    # Ten programs that end as they were told to need no ten tracebacks.
    sys.excepthook = lambda *_: None
    if how in signals:
        os.kill(os.getpid(), signals[how])
        time.sleep(10)
    elif how == "exit":
        sys.exit(3)
    elif how == "_exit":
        os._exit(4)
    elif how == "abort":
        os.abort()
    elif how == "exec":
        os.execv("/bin/sh", ["sh", "-c", "exit 5"])
    elif how == "fork":
        # The child ends in good order too, with the exit handlers that it has from its parent.
        child = os.fork()
        if child == 0:
            sys.exit(6)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    # Else by the end of the program.


def serve(device):
    device.capture()
    say(ready=os.getpid())
    for line in sys.stdin:
        order, *args = line.split()
        if order == "end":
            return end(device, args[0])
        if order == "capture":
            device.capture()
            say(captured=True)
        elif order == "memory":
            say(free=device.free_bytes())
        elif order == "eager":
            say(**timed(device, device.eager, int(args[0])))
        elif order == "graph":
            say(**timed(device, device.replay, int(args[0])))
        elif order == "profiler":
            # Another user of CUPTI in the same process, for some seconds.
            if not hasattr(device, "profiled"):
                say(missing="the stand-in has no profiler of its own")
                continue
            say(events=device.profiled(float(args[0])))
        elif order == "flood":
            # Many replays without waiting for each; what the buffers of a profiler find hard.
            for i in range(int(args[0])):
                device.replay()
                if i % 50 == 49:
                    device.wait()
            device.wait()
            say(replays=int(args[0]))
        else:
            say(error=f"no order is called {order}")


def steps(device, seconds, ready):
    marks, taken = Marks(), []
    device.capture()
    begin = time.monotonic()
    touch(ready)
    table = bytearray(1 << 20)
    while time.monotonic() - begin < seconds:
        start = now()
        marks.step(size=32 << 20)
        # A batch is prepared, sent, worked on, and waited for.
        marks.phase("load", lambda: [table.count(b"\1") for _ in range(8)])
        marks.phase("h2d", device.send)
        marks.phase("launch", lambda: (device.eager(), device.replay()))
        marks.phase("sync", device.wait)
        marks.step_end()
        taken.append(now() - start)
    taken.sort()
    say(steps=len(taken), median_ms=taken[len(taken) // 2] / 1e6, pid=os.getpid())


def hog(device, kind, ready, go, seconds):
    # On an H100: kernels of some 1.5 ms, of 11 ms at full power, and copies of 5 ms.
    what = {
        "competitor": lambda: device.products(8192),
        "power": lambda: device.products(16384),
        "copies": device.copies,
    }[kind]()
    what()
    device.wait()
    touch(ready)
    while not os.path.exists(go):
        time.sleep(0.01)
    begin, start = time.monotonic(), now()
    while time.monotonic() - begin < seconds:
        what()
        what()
        device.wait()
    say(kind=kind, pid=os.getpid(), from_ns=start, to_ns=now())


def main():
    device = open_device(os.environ.get("GPUWHY_CHECK_STANDIN") == "1")
    mode, *args = sys.argv[1:]
    if mode == "serve":
        serve(device)
    elif mode == "steps":
        steps(device, float(args[0]), args[1])
    elif mode == "hog":
        hog(device, args[0], args[1], args[2], float(args[3]))
    else:
        sys.exit(f"nothing is called {mode}")


main()
