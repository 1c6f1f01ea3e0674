"""Compiles Triton kernels of published packages to PTX, without a GPU and without torch.

    triton_kernels.py TOOLS OUT [WORD]      only kernels whose label contains WORD

TOOLS is where the wheels of triton, liger-kernel and fla-core are unpacked. The packages import torch,
of which the kernels themselves use nothing, so it is replaced by a stand-in that agrees to everything.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types

TOOLS, OUT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path.insert(0, TOOLS)


class Meta(type):
    """A class whose every attribute, item and call is itself again; a decorator that decorates nothing."""

    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Meta):
            return args[0]
        return Anything

    def same(cls, *_):
        return Anything

    def no(cls, *_):
        return False

    def __iter__(cls):
        return iter(())

    def __hash__(cls):
        return id(cls)

    __or__ = __ror__ = __getitem__ = __add__ = __mul__ = __floordiv__ = same
    __lt__ = __gt__ = __le__ = __ge__ = __bool__ = no


class Anything(metaclass=Meta):
    pass


class Standin(types.ModuleType):
    __path__ = []
    __version__ = "2.9.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    NAMES = ("torch", "einops", "packaging", "transformers", "fla.utils", "fla.backends", "liger_kernel.utils")

    def find_spec(self, name, path, target=None):
        if any(name == n or name.startswith(n + ".") for n in self.NAMES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Standin(spec.name)
        if spec.name == "packaging.version":
            module.Version = lambda text: tuple(int(part) for part in re.findall(r"\d+", text)[:3])
        if spec.name == "fla.utils":
            module.autotune_cache_kwargs = {}
            for name in ("IS_NVIDIA_BLACKWELL", "IS_NVIDIA_SM100", "IS_NVIDIA_SM120", "IS_AMD", "IS_INTEL"):
                setattr(module, name, False)
            for name in ("IS_NVIDIA", "IS_NVIDIA_HOPPER", "IS_TF32_SUPPORTED", "IS_GATHER_SUPPORTED"):
                setattr(module, name, True)
            module.IS_TMA_SUPPORTED = False
            module.check_shared_mem = lambda *_, **__: True
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
# The packages without what their __init__ would import.
for package in ("liger_kernel", "liger_kernel.ops", "fla", "fla.ops"):
    module = types.ModuleType(package)
    module.__path__ = [os.path.join(TOOLS, *package.split("."))]
    sys.modules[package] = module

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402


class Driver:
    """A device that is not there: what packages ask when they are imported."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def __getattr__(self, name):
        return Anything


triton.runtime.driver.set_active(Driver())

BF, F32, I32 = "*bf16", "*fp32", "i32"
NORM = {"BLOCK_SIZE": 4096, "casting_mode": 0, "elementwise_affine": True, "X_dtype": tl.bfloat16, "COMPUTE_DW": True,
        "COMPUTE_DB": True, "BLOCK_ROW": 16, "rows_per_program": 64, "has_dS_out": True}
WIDE = {"n_cols": 4096, "ffn_size": 4096, "BLOCK_SIZE": 4096}
ATTN = {"B": 4, "H": 8, "HQ": 8, "HV": 8, "G": 1, "K": 128, "V": 128, "BT": 64, "BS": 32, "BC": 16, "BK": 64, "BV": 128, "NC": 4,
        "NK": 2, "NV": 1, "NG": 1, "W": None, "USE_G": False, "USE_G_GAMMA": False, "USE_GK": False, "USE_GV": False,
        "USE_SINK_BIAS": False, "USE_WINDOW": False, "IS_VARLEN": False, "USE_GRAPH": False, "STATE_V_FIRST": False,
        "USE_INITIAL_STATE": False, "STORE_FINAL_STATE": False, "OUTPUT_ATTENTIONS": False, "REVERSE": False,
        "HAS_SCALE": False, "S": 128, "USE_TMA": False, "DOT_PRECISION": "ieee", "BTL": 64, "BTS": 32, "USE_DW": False,
        "USE_A": False, "STORE_INITIAL_STATE_GRADIENT": False, "USE_FINAL_STATE_GRADIENT": False, "D": 1024, "BD": 64,
        "USE_BLOCK_COUNTS": False, "TC": 64}
# A gate, where a kernel has one.
G = {"g": F32}
ABSENT = ("g_cumsum", "sink_bias", "cu_seqlens", "chunk_indices", "g", "g_gamma", "gk", "gv", "h0", "ht", "dht", "dh0",
          "split_offsets", "attn", "dw", "dg", "dg_cumsum", "chunk_offsets", "dgk", "dgv")
MOE = {"H_dim": 2048, "I_dim": 1024, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "stride_x_H": 1, "stride_w_K": 1,
       "stride_pre_N": 1, "stride_post_N": 1, "stride_post_I": 1, "stride_w_I": 1, "stride_Y_H": 1, "stride_dO_H": 1,
       "stride_d_pre_N": 1, "stride_wact_I": 1, "stride_dxe_H": 1, "stride_dout_H": 1, "stride_dW2_I": 1,
       "stride_dW1_H": 1, "stride_out_H": 1}
ROPE = {"bs": 4, "cos_bs": 1, "n_qh": 32, "n_kh": 8, "hd": 128, "pad_n_qh": 32, "pad_n_kh": 8, "pad_hd": 128, "rd": 128,
        "pad_rd": 128, "BLOCK_SIZE": 32, "BACKWARD_PASS": False, "mrope_section_t": 16, "mrope_section_h": 24}
LOSS = {"BLOCK_SIZE": 4096, "lse_square_scale": 0.0, "label_smoothing": 0.1, "reduction": "mean", "RETURN_Z_LOSS": False,
        "RETURN_TOKEN_ACCURACY": False, "RETURN_PREDICTED_TOKENS": False, "HAS_WEIGHT": False, "HAS_SOFTCAPPING": True,
        "HAS_GRADIENTS": True, "log_target": False, "beta": 0.5, "ignore_index": -100, "HAS_LABEL": True}

# Module, kernel, constants, options. Pointers, numbers and absent arguments are told by their names.
KERNELS = [
    *[("liger_kernel.ops." + m, k, c, {"num_warps": w}) for m, k, c, w in [
        ("rms_norm", "_rms_norm_forward_kernel", NORM, 8),
        ("rms_norm", "_rms_norm_backward_kernel", NORM, 8),
        ("rms_norm", "_block_rms_norm_forward_kernel", {**NORM, "BLOCK_SIZE": 256}, 8),
        ("layer_norm", "_layer_norm_forward_kernel", NORM, 8),
        ("layer_norm", "_layer_norm_backward_kernel", NORM, 8),
        ("softmax", "_softmax_single_block_forward_kernel", WIDE, 4),
        ("softmax", "_softmax_single_block_backward_kernel", WIDE, 4),
        ("cross_entropy", "liger_cross_entropy_kernel", LOSS, 4),
        ("geglu", "_geglu_tanh_forward_kernel", WIDE, 8),
        ("geglu", "_geglu_tanh_backward_kernel", WIDE, 4),
        ("swiglu", "_swiglu_forward_kernel", WIDE, 4),
        ("swiglu", "_swiglu_backward_kernel", WIDE, 4),
        ("rope", "_triton_rope", ROPE, 4),
        ("kl_div", "_kldiv_kernel_forward", {**LOSS, "reduction": 3}, 4),
        ("jsd", "_jsd_kernel", LOSS, 4),
        ("group_norm", "_group_norm_forward_kernel", {"BLOCK_SIZE": 2048}, 4),
        ("fused_add_rms_norm", "_fused_add_rms_norm_forward_kernel", NORM, 8),
        ("fused_add_rms_norm", "_fused_add_rms_norm_backward_kernel", NORM, 8),
        ("poly_norm", "_poly_norm_backward_kernel", NORM, 4),
        ("relu_squared", "_relu_squared_backward_kernel", WIDE, 4),
        ("qwen2vl_mrope", "_triton_qwen2vl_mrope", ROPE, 4),
        ("fused_moe_kernels", "_fused_up_proj_swiglu_kernel", {**MOE, "BLOCK_N": 64}, 8),
        ("fused_moe_kernels", "_fused_down_proj_kernel", MOE, 8),
        ("fused_moe_kernels", "_moe_bwd_dW2_kernel", MOE, 4),
        ("fused_moe_kernels", "_moe_bwd_dX_expanded_kernel", MOE, 8),
    ]],
    *[("fla.ops." + m, k, {**ATTN, **c}, {"num_warps": w, "num_stages": 2}) for m, k, c, w in [
        ("attn.parallel", "parallel_attn_fwd_kernel", {"BT": 128, "BK": 128}, 8),
        ("attn.parallel", "parallel_attn_bwd_kernel_dq", {"BT": 64, "BK": 128}, 4),
        ("attn.parallel", "parallel_attn_bwd_kernel_dkv", {"BT": 64, "BK": 128}, 4),
        ("gla.chunk", "chunk_gla_fwd_A_kernel_intra_sub_inter", {**G}, 4),
        ("gla.chunk", "chunk_gla_fwd_A_kernel_intra_sub_intra", {**G, "BK": 128}, 4),
        ("gla.chunk", "chunk_gla_bwd_kernel_dA", {"BV": 64}, 4),
        ("gla.chunk", "chunk_gla_bwd_kernel_inter", {**G, "dg": F32, "BV": 64}, 4),
        ("common.chunk_o", "chunk_fwd_kernel_o", {}, 8),
        ("common.chunk_o", "chunk_bwd_kernel_dqkwg", {"BV": 64}, 4),
        ("common.chunk_h", "chunk_fwd_kernel_h", {"BV": 64, "BS": 64}, 4),
        ("common.fused_recurrent", "fused_recurrent_fwd_kernel", {"BK": 64, "BV": 32}, 1),
        ("delta_rule.wy_fast", "recompute_w_u_fwd_kernel", {"BV": 64}, 4),
        ("delta_rule.wy_fast", "prepare_wy_repr_bwd_kernel", {"BV": 64, "dw": BF}, 4),
        ("simple_gla.parallel", "parallel_simple_gla_fwd_kernel", {"BK": 128}, 8),
        ("based.parallel", "parallel_based_fwd_kernel", {"K": 16, "BK": 16}, 4),
        ("utils.solve_tril", "solve_tril_16x16_kernel", {}, 2),
        ("utils.solve_tril", "merge_16x16_to_64x64_inverse_kernel", {}, 4),
        ("utils.cumsum", "chunk_global_cumsum_vector_kernel", {"BS": 32}, 4),
        ("hgrn.chunk", "chunk_hgrn_fwd_kernel_h", {**G}, 2),
    ]],
]

FLOATS = ("eps", "offset", "scale", "softcap", "gate_multiplier", "weight_sum", "sum_non_ignore_weight", "imag_sign")
INDICES = ("label_ptr", "cu_seqlens", "chunk_indices", "tile_expert_ptr", "x_gather_idx_ptr", "expert_start_ptr",
           "tile_row_start_ptr", "s_scatter_idx_ptr")


def kind(name, module, constants):
    """The type of an argument: as the list has it, else by its name."""
    if str(constants.get(name, "")).startswith("*"):
        return constants[name]
    if module.startswith("fla") and name in ABSENT:
        return None
    if name in FLOATS:
        return "fp32"
    if "stride" in name or name.startswith("n_") or name in ("T", "B", "sl", "N", "M", "n_cols", "ignore_index", "hidden_size",
                                                             "channels_per_group", "rows_per_program", "s_b", "s_t", "s_d"):
        return I32
    if name in INDICES:
        return "*i32"
    if name.lower().startswith(("rstd", "mean", "loss", "lse", "z_", "delta", "z")):
        return F32
    if name == "Y_ptr" and module.endswith("cross_entropy"):
        return "*i64"
    return BF


def relative(function):
    """Source paths as the wheel has them, so that the text does not depend on where it lies."""
    code = function.fn.__code__
    if code.co_filename.startswith(TOOLS):
        path = os.path.relpath(code.co_filename, TOOLS)
        function.fn.__code__ = code.replace(co_filename=path)


def compile_one(module, name, constants, options):
    namespace = vars(importlib.import_module(module))
    kernel = namespace[name]
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__name__", "").startswith(("fla.", "liger_kernel.", "triton.language")):
            for value in list(vars(loaded).values()):
                while not isinstance(value, (JITFunction, type)) and hasattr(value, "fn"):
                    value = value.fn
                if isinstance(value, JITFunction):
                    relative(value)
    signature, fixed, attributes = {}, {}, {}
    for at, parameter in enumerate(kernel.params):
        told = "constexpr" if parameter.is_constexpr else kind(parameter.name, module, constants)
        if told in ("constexpr", None):
            signature[parameter.name] = "constexpr"
            fixed[parameter.name] = constants[parameter.name] if told else None
        else:
            signature[parameter.name] = told
            if told.startswith("*") or "stride" in parameter.name:
                attributes[(at,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, fixed, attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def main():
    failed = 0
    for module, name, constants, options in KERNELS:
        label = f"{module.split('.')[0].split('_')[0]}-{module.split('.')[-1]}-{name.strip('_')}"
        if len(sys.argv) > 3 and sys.argv[3] not in label:
            continue
        try:
            text = compile_one(module, name, constants, options)
        except Exception as trouble:  # noqa: BLE001: the list says which kernels there must be
            failed += 1
            print(f"{label}: {type(trouble).__name__}: {str(trouble).strip().splitlines()[-1:]}", file=sys.stderr)
            continue
        with open(os.path.join(OUT, label + ".ptx"), "w") as file:
            file.write(text)
    sys.exit(1 if failed else 0)


main()
