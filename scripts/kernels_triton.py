"""Kernels in Triton, compiled without a GPU; kernels.py writes their launches."""

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

f32, i32 = np.float32, np.int32


@triton.jit
def t_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def t_softmax(x, out, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * cols + at, at < cols, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * cols + at, e / tl.sum(e, 0), at < cols)


@triton.jit
def t_layer_norm(x, gain, bias, out, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * cols + at, at < cols, other=0.0)
    mean = tl.sum(row, 0) / cols
    centred = tl.where(at < cols, row - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / cols + 1e-5)
    y = centred * scale * tl.load(gain + at, at < cols) + tl.load(bias + at, at < cols)
    tl.store(out + tl.program_id(0) * cols + at, y, at < cols)


@triton.jit
def t_matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc += tl.dot(x, y)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def t_scan(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def t_sort(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def t_histogram(x, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@triton.jit
def t_sum_atomic(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, at < n, other=0.0), 0))


@triton.jit
def t_transpose(x, out, M: tl.constexpr, N: tl.constexpr):
    rm, rn = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + rm[:, None] * N + rn[None, :])
    tl.store(out + rn[:, None] * M + rm[None, :], tl.trans(tile))


@triton.jit
def t_attention(q, k, v, out, n, D: tl.constexpr, B: tl.constexpr):
    r, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    x = tl.load(q + r[:, None] * D + d[None, :])
    most, total = tl.full((B,), -1e30, tl.float32), tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, D), tl.float32)
    for start in range(0, n, B):
        c = start + tl.arange(0, B)
        s = tl.dot(x, tl.load(k + c[None, :] * D + d[:, None])) * 0.25
        now = tl.maximum(most, tl.max(s, 1))
        p, keep = tl.exp(s - now[:, None]), tl.exp(most - now)
        total = total * keep + tl.sum(p, 1)
        acc = acc * keep[:, None] + tl.dot(p.to(tl.float16), tl.load(v + c[:, None] * D + d[None, :]))
        most = now
    tl.store(out + r[:, None] * D + d[None, :], acc / total[:, None])


def compiled(folder, kernel, signature, constants, arch, warps=4):
    """Compiles to FOLDER/NAME.ptx; the bytes of shared memory that a launch adds."""
    names = kernel.arg_names
    types = {**dict(zip(names, signature)), **{name: "constexpr" for name in constants}}
    places = {(names.index(name),): value for name, value in constants.items()}
    # Pointers and counts are multiples of 16 where torch would have them so.
    hints = {(at,): [["tt.divisibility", 16]] for at, t in enumerate(signature) if t.startswith("*")}
    source = ASTSource(fn=kernel, signature=types, constexprs=places, attrs=hints)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    (folder / f"{kernel.__name__}.ptx").write_text(made.asm["ptx"])
    return made.metadata.shared, (32 * warps,)


def cases(folder, Case, given, out, both):
    r = np.random.default_rng(7)
    n32 = lambda value: i32(value).tobytes()

    def case(kernel, grid, signature, constants, parameters, arch=80, warps=4):
        shared, block = compiled(folder, kernel, signature, constants, arch, warps)
        return Case(kernel.__name__, kernel.__name__, grid, block, parameters, shared)

    x, y = r.standard_normal(500, f32), r.standard_normal(500, f32)
    yield case(t_add, (4,), ["*fp32"] * 3 + ["i32"], {"BLOCK": 128}, [given(x), given(y), out(x + y), n32(500)], arch=90)
    m = r.standard_normal((3, 100), f32)
    e = np.exp(m.astype(np.float64) - m.max(1, keepdims=True))
    yield case(t_softmax, (3,), ["*fp32"] * 2 + ["i32"], {"BLOCK": 128}, [given(m), out((e / e.sum(1, keepdims=True)).astype(f32), 1e-5), n32(100)])
    g, b, d = r.standard_normal(100, f32), r.standard_normal(100, f32), m.astype(np.float64)
    norm = (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5) * g + b
    yield case(t_layer_norm, (3,), ["*fp32"] * 4 + ["i32"], {"BLOCK": 128}, [given(m), given(g), given(b), out(norm.astype(f32), 1e-5), n32(100)])
    a, b = r.standard_normal((64, 64)).astype(np.float16), r.standard_normal((64, 32)).astype(np.float16)
    c = (a.astype(np.float64) @ b).astype(f32)
    yield case(t_matmul, (2,), ["*fp16", "*fp16", "*fp32", "i32"], {"M": 32, "N": 32, "BK": 32}, [given(a), given(b), out(c, 1e-3), n32(64)])
    v = r.integers(0, 100, 256).astype(i32)
    yield case(t_scan, (1,), ["*i32"] * 2, {"N": 256}, [given(v), out(np.cumsum(v, dtype=i32))])
    yield case(t_sort, (1,), ["*i32"] * 2, {"N": 256}, [given(v), out(np.sort(v))])
    yield case(t_histogram, (1,), ["*i32"] * 2, {"N": 256, "BINS": 128}, [given(v), out(np.bincount(v, minlength=128).astype(i32))])
    yield case(t_sum_atomic, (4,), ["*fp32"] * 2 + ["i32"], {"BLOCK": 128}, [given(x), both(np.zeros(1, f32), f32([x.sum(dtype=np.float64)]), 1e-4), n32(500)])
    m = r.standard_normal((32, 64), f32)
    yield case(t_transpose, (1,), ["*fp32"] * 2, {"M": 32, "N": 64}, [given(m), out(m.T.copy())])
    q, k, v = (r.standard_normal((64, 16)).astype(np.float16) for _ in range(3))
    s = q.astype(np.float64) @ k.T * 0.25
    p = np.exp(s - s.max(1, keepdims=True))
    yield case(t_attention, (2,), ["*fp16"] * 3 + ["*fp32", "i32"], {"D": 16, "B": 32}, [given(q), given(k), given(v), out((p @ v / p.sum(1, keepdims=True)).astype(f32), 2e-3), n32(64)])
