"""What a process of an engine does to itself: put in front of PYTHONPATH as `sitecustomize`.

Processes whose command holds the word in ENGINE_DOES_IN map the file ENGINE_DOES and do what its first byte says, in a
thread of their own; each writes its pid beside the file. The second and third byte say by how many thousandths a model
runner's calls take longer, working; where the first one is 3, each twentieth of these calls compiles a function (Numba).
"""

import os


def computes():
    total = 0
    for number in range(100_000):
        total += number


def compiles():
    import numba

    numba.njit(lambda a, b: a * b + a)(2.0, 3.0)


def takes_longer(told):
    """Makes the calls of a process that runs the model take longer by what the file says at each."""
    import functools
    import itertools
    import sys
    import time

    module = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    if module is None:
        return
    runs, calls = module.GPUModelRunner.execute_model, itertools.count()

    @functools.wraps(runs)
    def longer(*args, **named):
        if told[0] == 3 and next(calls) % 20 == 0:
            compiles()
        began = time.perf_counter()
        result = runs(*args, **named)
        took = time.perf_counter() - began
        until = time.perf_counter() + took * (told[1] << 8 | told[2]) / 1000
        while time.perf_counter() < until:
            pass
        return result

    module.GPUModelRunner.execute_model = longer


def begin(path):
    import contextlib
    import gc
    import mmap
    import threading
    import time

    def does():
        with open(path, "r+b") as file:
            told = mmap.mmap(file.fileno(), 3)
        takes_longer(told)
        with contextlib.suppress(ImportError):
            # So that what is compiled is not loaded first.
            compiles()
        heap = []
        while True:
            if told[0] == 1:
                computes()
            elif told[0] == 2:
                heap = heap or [[number] for number in range(1_000_000)]
                gc.collect()
                time.sleep(0.2)
            else:
                time.sleep(0.02)

    threading.Thread(target=does, daemon=True, name="does").start()


def wait_for_name(path, word):
    import threading
    import time

    def watches():
        # A process of vLLM names itself once it is what it is.
        for _ in range(600):
            time.sleep(0.5)
            with open("/proc/self/cmdline", "rb") as file:
                if word.encode() in file.read():
                    with open(path + ".pid", "w") as out:
                        out.write(str(os.getpid()))
                    return begin(path)

    threading.Thread(target=watches, daemon=True, name="watches").start()


if os.environ.get("ENGINE_DOES"):
    wait_for_name(os.environ["ENGINE_DOES"], os.environ["ENGINE_DOES_IN"])
    os.register_at_fork(after_in_child=lambda: wait_for_name(os.environ["ENGINE_DOES"], os.environ["ENGINE_DOES_IN"]))
