"""Compiles the kernels of crates/gpubpf/tests/kernels and writes what they must compute.

Usage: kernels.py FOLDER [MODULE...]: for each kernel a module (.ptx), its launch (.case) and its buffers
(.bin) in FOLDER, for the tests of the simulator; what the outputs must be is computed by NumPy.
scripts/kernels.sh calls it. CUDA is compiled by NVRTC, and Triton's kernels where no MODULE is named.
"""

import ctypes
import pathlib
import sys

import numpy as np

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "crates/gpubpf/tests/kernels"
f32, f64, i32, u32, i64, u64, u8 = np.float32, np.float64, np.int32, np.uint32, np.int64, np.uint64, np.uint8
FLOATS = ("f16", "f32", "f64")


def nvrtc(source, name, arch):
    """The PTX of CUDA source."""
    folder = pathlib.Path(np.__file__).parent.parent / "nvidia/cu13/lib"
    # NVRTC looks for this one by its name, which is known once it is loaded.
    ctypes.CDLL(str(folder / "libnvrtc-builtins.so.13.0"), ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(str(folder / "libnvrtc.so.13"))
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"--device-int128"]
    result = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if result:
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"{name}: {log.value.decode()}")
    lib.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetPTX(program, text)
    return text.value.decode()


class Case:
    """One launch: parameters in order, each `bytes` (a scalar) or (input, expected or None, tolerance)."""

    def __init__(self, module, kernel, grid, block, parameters, shared=0):
        self.module, self.kernel, self.shared = module, kernel, shared
        self.grid, self.block = (tuple(s) + (1, 1, 1) for s in (grid, block))
        self.parameters = parameters

    def write(self, folder):
        lines = [f"module {self.module}.ptx", f"kernel {self.kernel}", "grid %d %d %d" % self.grid[:3],
                 "block %d %d %d" % self.block[:3], f"shared {self.shared}"]
        data = b""
        for p in self.parameters:
            if isinstance(p, bytes):
                lines.append("scalar " + p.hex())
                continue
            given, expected, tolerance = p
            line = f"buffer {(given if given is not None else expected).nbytes}"
            if given is not None:
                line += " in"
                data += np.ascontiguousarray(given).tobytes()
            if expected is not None:
                name = {"float16": "f16", "float32": "f32", "float64": "f64"}.get(str(expected.dtype), "exact")
                line += f" out {name} {tolerance:g}"
                data += np.ascontiguousarray(expected).tobytes()
            lines.append(line)
        (folder / f"{self.kernel}.case").write_text("\n".join(lines) + "\n")
        (folder / f"{self.kernel}.bin").write_bytes(data)


def given(array):
    return (array, None, 0.0)


def out(array, tolerance=0.0):
    return (None, array, tolerance)


def both(before, after, tolerance=0.0):
    return (before, after, tolerance)


def n32(value):
    return i32(value).tobytes()


def basic(r):
    n = 300
    x, y = r.standard_normal(n, f32), r.standard_normal(n, f32)
    yield Case("basic", "saxpy", (3,), (128,), [both(y, f32(2.5) * x + y, 1e-6), given(x), f32(2.5).tobytes(), n32(n)])
    a, b = r.standard_normal(400, f32), r.standard_normal(400, f32)
    yield Case("basic", "add_float4", (2,), (32,), [out(a + b), given(a), given(b), n32(100)])
    m = r.standard_normal((40, 70), f32)
    for name in ("transpose", "transpose_conflicts"):
        yield Case("basic", name, (3, 2), (32, 8), [out(m.T.copy()), given(m), n32(70), n32(40)])
    x64 = x.astype(f64)
    gelu = 0.5 * x64 * (1 + np.tanh(0.7978845608 * (x64 + 0.044715 * x64**3)))
    yield Case("basic", "gelu", (3,), (128,), [out(gelu.astype(f32), 2e-6), given(x), n32(n)])
    a = (r.standard_normal(96) * 10.0 ** r.integers(-3, 4, 96)).astype(f32)
    b = (r.standard_normal(96) * 10.0 ** r.integers(-3, 4, 96)).astype(f32)
    exact_sum, product = a.astype(f64) + b, a.astype(f64) * b
    lower = lambda v: np.where(v.astype(f32).astype(f64) > v, np.nextafter(v.astype(f32), f32(-np.inf)), v.astype(f32))
    upper = lambda v: np.where(v.astype(f32).astype(f64) < v, np.nextafter(v.astype(f32), f32(np.inf)), v.astype(f32))
    toward = np.where(product > 0, lower(product), upper(product))
    rows = np.stack([lower(exact_sum), upper(exact_sum), toward, a / b, upper(np.sqrt(np.abs(a).astype(f64))),
                     (product + 1).astype(f32), np.fmod(a, b), np.copysign(np.minimum(a, b), b)], 1).astype(f32)
    whole = np.stack([np.floor(a), np.rint(b), np.floor(a * f32(10))], 1).astype(i32)
    yield Case("basic", "rounding", (1,), (96,), [out(rows), out(whole), given(a), given(b), n32(96)])


def reduce(r):
    x = r.standard_normal(1000, f32)
    yield Case("reduce", "reduce_sum", (2,), (128,), [both(np.zeros(1, f32), np.array([x.sum(dtype=f64)], f32), 1e-4), given(x), n32(1000)])
    v = r.integers(-1000, 1000, 500, i32)
    blocks = np.pad(v, (0, 12)).reshape(4, 128).sum(1, dtype=i32)
    yield Case("reduce", "reduce_tree", (4,), (128,), [out(blocks), given(v), n32(500)], shared=512)
    yield Case("reduce", "extremes", (4,), (128,), [both(i32([-(2**31)]), i32([v.max()])), both(u32([2**32 - 1]), v.view(u32).min(keepdims=True)), both(i64([5]), i64([5 + v.sum()])), given(v), n32(500)])
    v = r.integers(0, 100, 256, i32)
    yield Case("reduce", "scan_hillis", (1,), (256,), [out(np.cumsum(v, dtype=i32)), given(v)])
    w = r.integers(0, 2**32, 512, u32)
    yield Case("reduce", "scan_blelloch", (1,), (256,), [out(np.concatenate([u32([0]), np.cumsum(w, dtype=u32)[:-1]])), given(w)])
    v = r.integers(-9, 9, 128, i32)
    yield Case("reduce", "scan_warp", (2,), (64,), [out(np.cumsum(v.reshape(4, 32), 1, dtype=i32)), given(v)])
    c = r.integers(0, 256, 3000, u8)
    yield Case("reduce", "histogram_shared", (2,), (128,), [both(np.zeros(256, u32), np.bincount(c, minlength=256).astype(u32)), given(c), n32(3000)])
    v = r.integers(0, 1000, 333, i32)
    yield Case("reduce", "histogram_aggregated", (3,), (128,), [both(np.zeros(8, u32), np.bincount(v & 7, minlength=8).astype(u32)), given(v), n32(333)])
    # One warp, so that the order is known.
    v = r.integers(0, 1000, 30, i32)
    kept = v[v % 3 == 0]
    yield Case("reduce", "compact", (1,), (32,), [both(np.full(30, -1, i32), np.concatenate([kept, np.full(30 - len(kept), -1, i32)])), both(np.zeros(1, u32), u32([len(kept)])), given(v), n32(30)])
    v = r.integers(-5, 100, 256, i32)
    rows = [[(b & 1).sum(), (b > 0).all(), (b > 90).any()] for b in v.reshape(4, 64)]
    yield Case("reduce", "count_block", (4,), (64,), [out(np.array(rows, i32)), given(v)])
    w = r.integers(0, 2**32, 32, u32)
    yield Case("reduce", "redux", (1,), (32,), [out(u32([w.sum(dtype=u32), w.min(), np.bitwise_or.reduce(w)])), given(w)])
    a, b = r.random(100), r.random(100)
    yield Case("reduce", "dot_double", (1,), (32,), [out(np.array([np.sqrt(a @ b) / 3]), 1e-12), given(a), given(b), n32(100)])


def gemm(r):
    a, b = r.standard_normal((33, 40), f32), r.standard_normal((40, 50), f32)
    c = (a.astype(f64) @ b).astype(f32)
    yield Case("gemm", "gemm_naive", (4, 5), (16, 8), [out(c, 1e-4), given(a), given(b), n32(33), n32(50), n32(40)])
    yield Case("gemm", "gemm_tiled", (4, 3), (16, 16), [out(c, 1e-4), given(a), given(b), n32(33), n32(50), n32(40)])
    a, b = r.standard_normal((64, 32), f32), r.standard_normal((32, 64), f32)
    yield Case("gemm", "gemm_registers", (2, 2), (64,), [out((a.astype(f64) @ b).astype(f32), 1e-4), given(a), given(b), n32(64), n32(32)])
    a, b = r.standard_normal((16, 64), f32), r.standard_normal((64, 8), f32)
    h = lambda v: v.astype(np.float16)
    c = (h(a).astype(f64) @ h(b)).astype(f32)
    yield Case("gemm", "mma_f16", (1,), (32,), [out(c, 1e-4), given(h(a)), given(h(b).T.copy()), n32(64)])
    yield Case("gemm", "mma_ldmatrix", (1,), (32,), [out(c, 1e-4), given(h(a)), given(h(b)), n32(64)])
    top = lambda v: (v.view(u32) >> 16 << 16).view(f32)
    bf = lambda v: (np.ascontiguousarray(v).view(u32) >> 16).astype(np.uint16)
    yield Case("gemm", "mma_bf16", (1,), (32,), [out((top(a).astype(f64) @ top(b)).astype(f32), 1e-4), given(bf(a)), given(bf(b.T)), n32(64)])
    tf = lambda v: ((v.view(u32) + 0x1000) & 0xFFFFE000).view(f32)
    yield Case("gemm", "mma_tf32", (1,), (32,), [out((tf(a).astype(f64) @ tf(b)).astype(f32), 1e-4), given(a), given(b.T.copy()), n32(64)])
    a, b = r.integers(-128, 128, (16, 64)).astype(np.int8), r.integers(-128, 128, (64, 8)).astype(np.int8)
    yield Case("gemm", "mma_s8", (1,), (32,), [out(a.astype(i32) @ b.astype(i32)), given(a), given(b.T.copy()), n32(64)])
    a, b = r.integers(-128, 128, (50, 32)).astype(np.int8), r.integers(-128, 128, 32).astype(np.int8)
    yield Case("gemm", "dp4a", (2,), (32,), [out(a.astype(i32) @ b.astype(i32)), given(a), given(b), n32(50), n32(8)])


def learning(r):
    x = r.standard_normal((4, 100), f32) * 3
    e = np.exp(x.astype(f64) - x.max(1, keepdims=True))
    yield Case("learning", "softmax", (4,), (64,), [out((e / e.sum(1, keepdims=True)).astype(f32), 1e-5), given(x), n32(100)])
    g, b = r.standard_normal(100, f32), r.standard_normal(100, f32)
    x64 = x.astype(f64)
    norm = (x64 - x64.mean(1, keepdims=True)) / np.sqrt(x64.var(1, keepdims=True) + 1e-5)
    yield Case("learning", "layer_norm", (4,), (32,), [out((norm * g + b).astype(f32), 1e-5), given(x), given(g), given(b), n32(100), f32(1e-5).tobytes()])
    norm = x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5)
    yield Case("learning", "rms_norm", (4,), (32,), [out((norm * g).astype(f32), 1e-5), given(x), given(g), n32(100)])
    q, k, v = (r.standard_normal((12, 32), f32) for _ in range(3))
    s = np.where(np.tri(12, dtype=bool), q.astype(f64) @ k.T * 0.17677669, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    yield Case("learning", "attention", (12,), (32,), [out((p @ v / p.sum(1, keepdims=True)).astype(f32), 1e-5), given(q), given(k), given(v), n32(12)])
    m = r.standard_normal((20, 35), f32)
    tap = f64([1, 4, 6, 4, 1])
    padded = np.pad(m.astype(f64), 2, "edge")
    conv = sum(tap[i] * tap[j] * padded[j:j + 20, i:i + 35] for i in range(5) for j in range(5)) / 256
    yield Case("learning", "convolution", (3, 2), (16, 16), [out(conv.astype(f32), 1e-5), given(m), n32(35), n32(20)])
    hx, hy = r.standard_normal(100).astype(np.float16), r.standard_normal(100).astype(np.float16)
    axpy = (np.float16(1.7).astype(f64) * hx + hy).astype(np.float16)
    yield Case("learning", "half_axpy", (1,), (64,), [both(hy, axpy), given(hx), f32(1.7).tobytes(), n32(50)])
    points, centres = r.standard_normal((200, 2), f32), r.standard_normal((5, 2), f32)
    near = ((points[:, None].astype(f64) - centres) ** 2).sum(2).argmin(1).astype(i32)
    sums = np.stack([points[near == c].sum(0, dtype=f64) for c in range(5)]).astype(f32)
    yield Case("learning", "kmeans", (2,), (128,), [out(near), both(np.zeros((5, 2), f32), sums, 1e-4), both(np.zeros(5, i32), np.bincount(near, minlength=5).astype(i32)), given(points), given(centres), n32(200), n32(5)])


def algorithms(r):
    v = r.integers(-(2**31), 2**31, 512).astype(i32)
    yield Case("algorithms", "bitonic", (1,), (512,), [both(v, np.sort(v))])
    text, word = r.integers(97, 99, 400).astype(u8), u8([97, 98, 97])
    hits = i32([int((text[i:i + 3] == word).all()) for i in range(398)])
    yield Case("algorithms", "search_text", (4,), (128,), [out(hits), both(np.zeros(1, u32), u32([hits.sum()])), given(text), given(word), n32(400), n32(3)])
    keys, data = r.integers(0, 500, 90, i32), np.sort(r.integers(0, 500, 200, i32))
    yield Case("algorithms", "lower_bound", (1,), (96,), [out(np.searchsorted(data, keys).astype(i32)), given(data), given(keys), n32(200), n32(90)])

    def steps(x):
        n = 0
        while x != 1:
            x, n = (3 * x + 1 if x & 1 else x // 2), n + 1
        return n

    yield Case("algorithms", "collatz", (2,), (64,), [out(u32([steps(i + 1) for i in range(100)])), n32(100)])
    w, h, limit = 32, 16, 60
    px, py = np.meshgrid(np.arange(w), np.arange(h))
    cx, cy = -2.0 + px * (3.0 / w), -1.0 + py * (2.0 / h)
    x, y, count = np.zeros((h, w)), np.zeros((h, w)), np.zeros((h, w), i32)
    for _ in range(limit):
        on = x * x + y * y <= 4.0
        count += on
        x, y = np.where(on, x * x - y * y + cx, x), np.where(on, 2.0 * x * y + cy, y)
    # cx and cy come from a fused product in the kernel: the edge may differ there.
    yield Case("algorithms", "mandelbrot", (2, 2), (16, 8), [out(count), n32(w), n32(h), n32(limit)])
    g = r.integers(0, 2, (16, 32)).astype(u8)
    n = sum(np.roll(g, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    yield Case("algorithms", "life", (2, 2), (16, 8), [out(((n == 3) | ((n == 2) & (g == 1))).astype(u8)), given(g), n32(32), n32(16)])
    x = r.standard_normal(300, f32)
    padded = np.pad(x.astype(f64), 3)
    yield Case("algorithms", "stencil", (3,), (128,), [out((sum(padded[i:i + 300] for i in range(7)) / 7).astype(f32), 1e-5), given(x), n32(300)])
    m = r.standard_normal((20, 30), f32)
    after = m.copy()
    after[1:-1, 1:-1] = 0.25 * (m[1:-1, :-2].astype(f64) + m[1:-1, 2:] + m[:-2, 1:-1] + m[2:, 1:-1])
    yield Case("algorithms", "jacobi", (2, 3), (16, 8), [out(after, 1e-6), given(m), n32(30), n32(20)])
    dense = r.standard_normal((20, 60), f32) * (r.random((20, 60)) < 0.5)
    rows = np.concatenate([[0], np.cumsum((dense != 0).sum(1))]).astype(i32)
    x = r.standard_normal(60, f32)
    yield Case("algorithms", "sparse", (5,), (128,), [out((dense.astype(f64) @ x).astype(f32), 1e-4), given(rows), given(np.nonzero(dense)[1].astype(i32)), given(dense[dense != 0]), given(x), n32(20)])
    edges = r.random((60, 60)) < 0.04
    rows = np.concatenate([[0], np.cumsum(edges.sum(1))]).astype(i32)
    distance = np.full(60, -1, i32)
    distance[0], level = 0, 0
    while (distance == level).any():
        distance[edges[distance == level].any(0) & (distance < 0)] = level + 1
        level += 1
    start = np.full(60, -1, i32)
    start[0] = 0
    yield Case("algorithms", "bfs", (1,), (64,), [both(start, distance), given(rows), given(np.nonzero(edges)[1].astype(i32)), n32(60)])
    d = r.integers(1, 100, (12, 12)).astype(i32)
    np.fill_diagonal(d, 0)
    after = d.copy()
    for k in range(12):
        after = np.minimum(after, after[:, k:k + 1] + after[k:k + 1])
    yield Case("algorithms", "floyd", (1,), (64,), [both(d, after), n32(12)])
    a, b = r.integers(97, 101, 64).astype(u8), r.integers(97, 101, 64).astype(u8)
    line = list(range(65))
    for i in range(64):
        before, line[0] = line[:], i + 1
        for j in range(64):
            line[j + 1] = min(line[j] + 1, before[j + 1] + 1, before[j] + int(a[i] != b[j]))
    yield Case("algorithms", "levenshtein", (1,), (96,), [out(i32([line[64]])), given(a), given(b), n32(64)])
    body = r.standard_normal((128, 4), f32)
    delta = body[None, :, :3].astype(f64) - body[:, None, :3]
    s = body[None, :, 3] * ((delta**2).sum(2) + 0.01) ** -1.5
    force = np.concatenate([(s[..., None] * delta).sum(1), np.zeros((128, 1))], 1).astype(f32)
    yield Case("algorithms", "nbody", (2,), (64,), [out(force, 1e-3), given(body), n32(128)])
    z = r.standard_normal((256, 2), f32)
    spectrum = np.fft.fft(z[:, 0].astype(f64) + 1j * z[:, 1])
    yield Case("algorithms", "fft", (1,), (128,), [both(z, np.stack([spectrum.real, spectrum.imag], 1).astype(f32), 1e-4)])


def bits(r):
    x = np.arange(128, dtype=u32) * u32(2654435761) + u32(1)
    for _ in range(20):
        x ^= x << u32(13)
        x ^= x >> u32(17)
        x ^= x << u32(5)
    yield Case("bits", "xorshift", (2,), (64,), [out(x), n32(20)])
    i = np.arange(64, dtype=u64)
    c = [i, i * 0, i * 0 + 7, i * 0]
    k0, k1, low = 123, 456, u64(0xFFFFFFFF)
    for _ in range(10):
        p, q = u64(0xD2511F53) * c[0], u64(0xCD9E8D57) * c[2]
        c = [(q >> u64(32)) ^ c[1] ^ u64(k0), q & low, (p >> u64(32)) ^ c[3] ^ u64(k1), p & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    yield Case("bits", "philox", (2,), (32,), [out(np.stack(c, 1).astype(u32)), u32(123).tobytes(), u32(456).tobytes()])
    import hashlib
    import zlib
    data = r.integers(0, 256, (64, 24)).astype(u8)
    yield Case("bits", "crc32", (2,), (32,), [out(u32([zlib.crc32(row.tobytes()) for row in data])), given(data), n32(24)])
    texts = [r.integers(0, 256, 40).astype(u8).tobytes() for _ in range(32)]
    blocks = b"".join(t + b"\x80" + bytes(15) + (320).to_bytes(8, "big") for t in texts)
    digests = np.frombuffer(b"".join(hashlib.sha256(t).digest() for t in texts), ">u4").astype(u32)
    yield Case("bits", "sha256", (1,), (32,), [out(digests), given(np.frombuffer(blocks, u8))])
    a, b = (r.integers(0, 2**64, 64, u64) for _ in range(2))
    b[::7] >>= u64(40)
    b[3] = 0
    rows = []
    for p, q in zip(a.tolist(), b.tolist()):
        wide = p * q + p
        rows.append([wide % 2**64, wide >> 64 & (2**64 - 1), p // q if q else 0, p % (q >> 33 | 1) if q else 0])
    yield Case("bits", "wide_product", (2,), (32,), [out(np.array(rows, u64)), given(a), given(b), n32(64)])
    w = np.concatenate([u32([0, 1, 2**31, 2**32 - 1]), r.integers(0, 2**32, 60, u32)])
    rows = []
    for x in w.tolist():
        first = (x & -x).bit_length()
        add = sum(((x >> s & 255) + (0x01FF7F80 >> s & 255) & 255) << s for s in (0, 8, 16, 24))
        signed = x - 2**32 if x >= 2**31 else x
        row = [bin(x).count("1"), 32 - x.bit_length(), first, int(f"{x:032b}"[::-1], 2), add, abs(signed - 77) + 3]
        rows.append([v & 0xFFFFFFFF for v in row])
    yield Case("bits", "counting", (2,), (32,), [out(np.array(rows, u32)), given(w), n32(64)])


def calls(r):
    fib = [0, 1]
    while len(fib) < 11:
        fib.append(fib[-1] + fib[-2])
    yield Case("calls", "recursion", (1,), (32,), [out(i32([fib[t % 11] for t in range(32)]))])
    v, t = r.integers(0, 99, 32, i32), np.arange(32, dtype=i32)
    yield Case("calls", "pointers", (1,), (32,), [out(np.choose(v % 3, [v + t, v * t, v ^ t])), given(v)])

    def swapped(p, by):
        return p[1] + p[0] * by, p[2], p[1] - by

    pairs = [swapped(swapped((7, -4, 9), t), 3) for t in range(16)]
    yield Case("calls", "structures", (1,), (16,), [out(i64([a * 1000 + b * 10 + c for a, b, c in pairs])), i64(7).tobytes() + i32([-4, 9]).tobytes()])
    v = r.integers(0, 1000, 100, i32)
    ways = [lambda x: x * 3, lambda x: x - 7, lambda x: x // 3, lambda x: ~x, lambda x: x << 2, lambda x: x * x,
            lambda x: x ^ 0x55, lambda x: x % 5, lambda x: -x, lambda x: x | 0x100, lambda x: 1, lambda x: 1]
    yield Case("calls", "choices", (2,), (64,), [out(i32([ways[x % 12](x) for x in v.tolist()])), given(v), n32(100)])
    yield Case("calls", "lock", (2,), (64,), [both(np.zeros(1, i32), np.zeros(1, i32)), both(np.zeros(1, i32), i32([128]))])
    v = r.integers(0, 1000, (3, 64)).astype(i32)
    yield Case("calls", "pipeline", (1,), (128,), [out((v * 2)[:, ::-1] + np.arange(3, dtype=i32)[:, None]), given(v), n32(3)])
    squares = np.arange(9, dtype=i32) ** 2
    yield Case("calls", "ticket", (9,), (32,), [out(np.append(squares, squares.sum()).astype(i32))])


GROUPS = [basic, reduce, gemm, learning, algorithms, bits, calls]


def main():
    folder, only = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    for group in GROUPS:
        name = group.__name__
        if only and name not in only:
            continue
        source = (SOURCES / f"{name}.cu").read_text()
        (folder / f"{name}.ptx").write_text(nvrtc(source, f"{name}.cu", "compute_80"))
        for case in group(np.random.default_rng(sum(name.encode()))):
            case.write(folder)
    if not only:
        import kernels_triton

        for case in kernels_triton.cases(folder, Case, given, out, both):
            case.write(folder)


if __name__ == "__main__":
    main()
