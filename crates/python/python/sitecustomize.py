"""Brings gpuwhy into the Python processes of a recording where it is not installed, and then whatever
`sitecustomize` the program has itself.

Any Python may read this, so it is written for all of them.
"""

import os
import sys


def _begin():
    here = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("GPUWHY_RING") or os.environ.get("GPUWHY_SOCKET")
    wanted = named and os.environ.get("GPUWHY_HOOKS") != "off"
    if wanted and sys.version_info >= (3, 10) and "gpuwhy" not in sys.modules:
        try:
            __import__("gpuwhy")
        except Exception:  # The program runs as if nobody looked.
            pass
    # The program finds its modules where it would find them otherwise; its children are asked anew.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


_begin()
