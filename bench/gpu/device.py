"""What the workloads of gpu-check do on a GPU: by PyTorch, or by the driver's functions alone, which is how they
run over the stand-in (crates/standin)."""

import ctypes
import os
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Marks:
    """Steps and phases in the ring that GPUWHY_RING names; nothing without libgpuwhy_mark.so."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL(os.path.join(os.environ["GPUWHY_CHECK_BIN"], "libgpuwhy_mark.so"))
        except (KeyError, OSError):
            self.library = None
            return
        self.library.mark_step.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_long]
        self.library.mark_phase.argtypes = [ctypes.c_char_p]

    def step(self, rank=0, size=1):
        if self.library:
            self.library.mark_step(b"step", rank, size)

    def step_end(self):
        if self.library:
            self.library.mark_step_end()

    def phase(self, name, do):
        if not self.library:
            return do()
        self.library.mark_phase(name.encode())
        try:
            return do()
        finally:
            self.library.mark_phase_end()


class Torch:
    """A small transformer that is trained eagerly, and its forward pass as a CUDA graph: kernels of a few us, so
    that launching is what takes time. That is the worst case for whoever is asked about each kernel."""

    def __init__(self):
        import torch

        self.torch = torch
        torch.manual_seed(0)
        torch.set_num_threads(1)
        make = lambda: torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
        self.model = torch.nn.Sequential(*(make() for _ in range(4))).cuda().bfloat16()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.input = torch.randn(8, 64, 256, device="cuda", dtype=torch.bfloat16)
        self.batch = torch.randn(16 << 20, dtype=torch.bfloat16).pin_memory()
        self.landed = torch.empty(16 << 20, device="cuda", dtype=torch.bfloat16)
        self.graph = None
        for _ in range(5):
            self.eager()
        self.wait()

    def eager(self):
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.model(self.input).float().pow(2).mean()
        loss.backward()
        self.optimiser.step()

    def capture(self):
        torch = self.torch
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.model(self.input)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self.graph):
                for _ in range(3):
                    self.model(self.input)
        self.wait()

    def replay(self):
        self.graph.replay()

    def send(self):
        self.landed.copy_(self.batch, non_blocking=True)

    def wait(self):
        self.torch.cuda.synchronize()

    def profiled(self, seconds):
        """Steps under PyTorch's own profiler, and how many kernels it saw."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            begin = time.monotonic()
            while time.monotonic() - begin < seconds:
                self.eager()
                self.wait()
                time.sleep(0.02)
        return len(profiler.events())

    def free_bytes(self):
        return self.torch.cuda.mem_get_info()[0]

    def products(self, size):
        """Matrix products that keep the device busy."""
        torch = self.torch
        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        c = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=c)

    def copies(self):
        host = self.torch.empty(256 << 20, dtype=self.torch.uint8).pin_memory()
        there = self.torch.empty(256 << 20, device="cuda", dtype=self.torch.uint8)
        return lambda: there.copy_(host, non_blocking=True)


class Standin:
    """The same through libcuda.so.1; the kernels are the stand-in's, which take the time they are told to."""

    KERNELS = 64

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        handle = lambda: ctypes.c_void_p()
        device, context, self.stream, module = ctypes.c_int(), handle(), handle(), handle()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuModuleLoadData", ctypes.byref(module), b"gpuwhy\0")
        self.kernels = []
        with open(os.path.join(HERE, "..", "inject", "kernels.txt")) as file:
            for name in file.read().split():
                function = handle()
                self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
                self.kernels.append(function)
        self.graph = None
        self.there, self.host = ctypes.c_uint64(), handle()
        self.call("cuMemAlloc_v2", ctypes.byref(self.there), ctypes.c_size_t(32 << 20))
        self.call("cuMemAllocHost_v2", ctypes.byref(self.host), ctypes.c_size_t(32 << 20))

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def launch(self, kernel, us):
        work = ctypes.c_uint64(int(us * 1000))
        params = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(work), ctypes.c_void_p))
        self.call("cuLaunchKernel", kernel, 132, 1, 1, 256, 1, 1, 0, self.stream, params, None)

    def eager(self):
        for i in range(self.KERNELS):
            self.launch(self.kernels[i % len(self.kernels)], 5)

    def capture(self):
        graph, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 1)
        self.eager()
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(self.graph), graph, ctypes.c_uint64(0))

    def replay(self):
        self.call("cuGraphLaunch", self.graph, self.stream)

    def send(self):
        self.call("cuMemcpyHtoDAsync_v2", self.there, self.host, ctypes.c_size_t(32 << 20), self.stream)

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def products(self, size):
        return lambda: self.launch(self.kernels[0], size / 2)

    def copies(self):
        return self.send


def open_device(standin):
    return Standin() if standin else Torch()


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
