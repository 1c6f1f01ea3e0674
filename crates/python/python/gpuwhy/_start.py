"""Runs in each Python process of a recording, before the program, and imports next to nothing."""

import os
import sys

# When a module has been imported, a function of one of ours is called with it.
AFTER = {
    "torch": ("_torch", "install"),
    "torch._dynamo.eval_frame": ("_torch", "hide"),
    "torch._dynamo.callback": ("_compiling", "install"),
    "numba.core.event": ("_compiling", "numba"),
    "triton.compiler.compiler": ("_compiling", "triton"),
    "accelerate.data_loader": ("_frameworks", "accelerate"),
    "accelerate.accelerator": ("_frameworks", "accelerator"),
    "transformers.trainer": ("_frameworks", "transformers"),
    "lightning.pytorch.strategies.strategy": ("_frameworks", "lightning_strategy"),
    "lightning.pytorch.plugins.precision.precision": ("_frameworks", "lightning_precision"),
    "lightning.pytorch.core.module": ("_frameworks", "lightning_module"),
    "lightning.pytorch.loops.evaluation_loop": ("_frameworks", "lightning_evaluation"),
    "pytorch_lightning.strategies.strategy": ("_frameworks", "lightning_strategy"),
    "pytorch_lightning.plugins.precision.precision": ("_frameworks", "lightning_precision"),
    "pytorch_lightning.core.module": ("_frameworks", "lightning_module"),
    "pytorch_lightning.loops.evaluation_loop": ("_frameworks", "lightning_evaluation"),
    "torch.distributed.checkpoint.state_dict_saver": ("_torch", "sharded_checkpoints"),
    "safetensors.torch": ("_torch", "safetensors"),
}


# The packages of engines: the table of their functions is read when the first one is imported.
_ENGINES = ("vllm", "sglang", "transformers.generation.continuous_batching")
AFTER.update(dict.fromkeys(_ENGINES, ("engine", "imported")))


class _AfterImport:
    """Finds no module itself; lets a function of `wanted` run when its module has been imported."""

    def __init__(self, wanted):
        self.wanted = wanted
        # Asking where a module is, as `importlib.util.find_spec` does, does not import it.
        self.asking = set()

    def find_spec(self, name, path=None, target=None):
        if name not in self.wanted or name in self.asking:
            return None
        self.asking.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if finder is not self and find else None
                if spec is not None:
                    _run_after(spec.loader, name, self.wanted)
                    return spec
        finally:
            self.asking.discard(name)
        return None


def _run_after(loader, name, wanted):
    """Once, when `loader` has run its module; then the loader is as it was."""
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module):
        del loader.exec_module
        run(module)
        after = wanted.pop(name, None)
        if after is not None:
            _imported(module, name, after)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass


def wait_for(functions):
    """Lets functions run when their modules have been imported: {name: function}. Those that are waited for
    already are left as they are."""
    for finder in sys.meta_path:
        if isinstance(finder, _AfterImport):
            for name, function in functions.items():
                if name not in sys.modules:
                    finder.wanted.setdefault(name, function)
            return
    sys.meta_path.insert(0, _AfterImport(functions))


def _ours(module, function):
    def after(imported):
        getattr(__import__(f"gpuwhy.{module}", fromlist=[function]), function)(imported)

    return after


def _imported(module, name, after):
    try:
        after(module)
    except Exception as error:  # A version that we do not know: the program runs as if nobody looked.
        from ._native import notice

        notice(f"gpuwhy: no hooks in {name}: {type(error).__name__}")


_forks = False


def after_fork(native):
    """Lets children made by fork look for who listens themselves."""
    global _forks
    if not _forks:
        _forks = True
        os.register_at_fork(after_in_child=native.forked)


def begin(native):
    """Opens the ring that a recording names, or looks for who listens at the agent socket, and waits for the libraries
    that we know."""
    ring, hooks = os.environ.get("GPUWHY_RING"), os.environ.get("GPUWHY_HOOKS") != "off"
    # In a container there may be the socket alone.
    is_wanted = ring and native.open(ring) or os.environ.get("GPUWHY_SOCKET") and native.listen()
    if not is_wanted:
        return
    after_fork(native)
    if not hooks:
        return
    after = {name: _ours(*ours) for name, ours in AFTER.items()}
    for name in [name for name in after if name in sys.modules]:
        _imported(sys.modules[name], name, after.pop(name))
    sys.meta_path.insert(0, _AfterImport(after))
