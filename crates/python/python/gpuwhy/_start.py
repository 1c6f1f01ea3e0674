"""Runs in each Python process of a recording, before the program, and imports next to nothing."""

import os
import sys

# When a module has been imported, a function of one of ours is called with it.
AFTER = {
    "torch": ("_torch", "install"),
    "torch._dynamo.eval_frame": ("_torch", "hide"),
    "torch._dynamo.callback": ("_compiling", "install"),
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


class _AfterImport:
    """Finds no module itself; lets a function run when one of `AFTER` has been imported."""

    def __init__(self):
        # Asking where a module is, as `importlib.util.find_spec` does, does not import it.
        self.asking = set()

    def find_spec(self, name, path=None, target=None):
        if name not in AFTER or name in self.asking:
            return None
        self.asking.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if finder is not self and find else None
                if spec is not None:
                    _run_after(spec.loader, name)
                    return spec
        finally:
            self.asking.discard(name)
        return None


def _run_after(loader, name):
    """Once, when `loader` has run its module; then the loader is as it was."""
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module):
        del loader.exec_module
        run(module)
        _imported(module, name)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass


def _imported(module, name):
    ours, function = AFTER[name]
    try:
        getattr(__import__(f"gpuwhy.{ours}", fromlist=[function]), function)(module)
    except Exception as error:  # A version that we do not know: the program runs as if nobody looked.
        from ._native import mark

        mark(f"gpuwhy: no hooks in {name}: {type(error).__name__}", None)


def begin(open_ring):
    """Opens the ring that a recording names, and waits for the libraries that we know."""
    ring = os.environ.get("GPUWHY_RING")
    if not ring or not open_ring(ring) or os.environ.get("GPUWHY_HOOKS") == "off":
        return
    for name in AFTER:
        if name in sys.modules:
            _imported(sys.modules[name], name)
    sys.meta_path.insert(0, _AfterImport())
