"""Runs in each Python process of a recording, before the program, and imports next to nothing."""

import os
import sys


class _AfterImport:
    """Finds no module itself; lets a function run when one of `wanted` has been imported."""

    def __init__(self, wanted):
        self.wanted = wanted

    def find_spec(self, name, path=None, target=None):
        if name not in self.wanted:
            return None
        after = self.wanted.pop(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if finder is not self and find else None
            if spec is not None:
                _run_after(spec.loader, after)
                return spec
        return None


def _run_after(loader, after):
    """Once, when `loader` has run its module; then the loader is as it was."""
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module):
        del loader.exec_module
        run(module)
        try:
            after(module)
        except Exception:  # A version that we do not know: the program runs as if nobody looked.
            from ._native import mark

            mark(f"gpuwhy: no hooks in {module.__name__}", None)

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


# The packages of engines: the table of their functions is read when the first one is imported.
_ENGINES = ("vllm", "sglang", "transformers.generation.continuous_batching")


def _engine(_module):
    from . import engine

    engine.register()


def _torch(module):
    from . import _torch as hooks

    hooks.install(module)


def begin(open_ring):
    """Opens the ring that a recording names, and waits for the libraries that we know."""
    ring = os.environ.get("GPUWHY_RING")
    if not ring or not open_ring(ring) or os.environ.get("GPUWHY_HOOKS") == "off":
        return
    if "torch" in sys.modules:
        _torch(sys.modules["torch"])
    else:
        wait_for({"torch": _torch})
    if any(name in sys.modules for name in _ENGINES):
        _engine(None)
    else:
        wait_for(dict.fromkeys(_ENGINES, _engine))
