"""Engines that serve language models: spans of their functions, and what each step was made of.

`register` is the entry point of the plug-ins of vLLM and SGLang, and does what the start of every recorded Python
process does as well: it waits for the engine's modules, and wraps in each what the table says. It may be called any
number of times, in any process. Records are written while somebody records; else a call is a branch. A function that a
version lacks is a mark in the trace, `gpuwhy: no ENGINE:FUNCTION`, and nothing else.

    python -m gpuwhy.engine check [PATH…]     resolves the table over packages, without importing them
"""

import importlib
import os
import sys

from . import _native
from . import _engine_table as table

_done = set()  # modules that have their wrappers


def wanted():
    """Every module that some engine has something in."""
    return {module: engine for engine in table.ENGINES for module in table.modules(engine)}


def version(engine):
    """The engine's version, as its package says; empty if it does not."""
    module = sys.modules.get(engine)
    own = getattr(module, "__version__", None)
    if isinstance(own, str) and table.number(own):
        return own
    from importlib import metadata

    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return ""


def _find(module, name):
    """The owner of a name in a module, and its last part; `None` if something on the way is missing."""
    owner, *rest = module, *name.split(".")
    for part in rest[:-1]:
        owner = getattr(owner, part, None)
        if owner is None:
            return None
    return owner, rest[-1]


def _put(owner, name, span, kind, before, after):
    """Wraps `owner.name` where it is defined; whether there was such a thing."""
    function = vars(owner).get(name)
    if function is None:
        return False
    made = type(function) if isinstance(function, (staticmethod, classmethod)) else None
    inner = function.__func__ if made else function
    if type(inner).__name__ == "wrapper" and type(inner).__module__ == "gpuwhy._native":
        return True
    wrapped = _native.wrap(inner, span, kind, before, after)
    setattr(owner, name, made(wrapped) if made else wrapped)
    return True


def _hooks(engine):
    return importlib.import_module(f"gpuwhy._engine_{engine}")


def install(engine, module):
    """Wraps what the table has in a module that has been imported; what is missing."""
    if module.__name__ in _done:
        return []
    _done.add(module.__name__)
    hooks, mine, missing = _hooks(engine), version(engine), []
    for _, _, place, name, span, kind, before, after in table.rows(engine, mine):
        if place != module.__name__ or kind == "concrete":
            continue
        found = _find(module, name)
        if kind == "scopes":
            scope = hooks.scopes(table.scopes(engine, mine))
            if scope is None:
                _native.notice(f"gpuwhy: the scopes of {engine} are another profiler's")
            elif found is None or not hasattr(*found):
                missing.append(name)
            else:
                setattr(*found, scope)
            continue
        before, after = (hook and getattr(hooks, hook) for hook in (before, after))
        if found is None or not _put(*found, span, kind, before, after):
            missing.append(name)
    for name in missing:
        _native.notice(f"gpuwhy: no {engine}:{name}"[:100])
    return missing


def concrete(engine, base, instance):
    """Wraps the functions of a base as the class of an instance has them."""
    for _, _, _, name, span, kind, before, after in table.rows(engine, version(engine)):
        owner, _, function = name.partition(".")
        if kind != "concrete" or owner != base:
            continue
        for made in type(instance).__mro__:
            if function in vars(made):
                _put(made, function, span, "phase", before, after)
                break


def register():
    """The entry point of plug-ins; see the module."""
    # An engine that has the plug-in is seen by whoever comes to look at it.
    if os.environ.get("GPUWHY_HOOKS") != "off" and _native.listen():
        _wrap()


def _wrap():
    from . import _start

    _start.after_fork(_native)
    for module, engine in wanted().items():
        if module in sys.modules and not _is_beginning(sys.modules[module]):
            _safely(engine, sys.modules[module])
    _start.wait_for({module: _later(engine) for module, engine in wanted().items()})


def imported(_package):
    """After the import of an engine's package, in a process that loads no plug-ins."""
    _wrap()


def _is_beginning(module):
    """Whether a module is just being imported: not all of it is there, and what waits for its end will come."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _later(engine):
    return lambda module: _safely(engine, module)


def _safely(engine, module):
    try:
        install(engine, module)
    except Exception:  # The engine runs as if nobody looked.
        _native.notice(f"gpuwhy: no hooks in {module.__name__}"[:100])


if __name__ == "__main__":
    from . import _engine_check

    sys.exit(_engine_check.main(sys.argv[1:]))
