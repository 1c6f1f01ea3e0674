#!/usr/bin/env python3
"""Puts the Python package together from the library that cargo built: wheel.py LIBRARY FOLDER.

Leaves FOLDER/gpuwhy-python, which `gpuwhy record` brings into Python programs, and the wheel
FOLDER/gpuwhy-VERSION-cp310-abi3-TAG.whl of the same files, for `pip install`.
"""

import base64
import hashlib
import os
import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/python/python"


def stage(library, folder):
    """The package as a folder that PYTHONPATH may name."""
    target = folder / "gpuwhy-python"
    shutil.rmtree(target, ignore_errors=True)
    (target / "gpuwhy").mkdir(parents=True)
    for source in sorted(SOURCE.glob("gpuwhy/*.py")) + [SOURCE / "sitecustomize.py"]:
        shutil.copy(source, target / source.relative_to(SOURCE))
    shutil.copy(library, target / "gpuwhy/_native.abi3.so")
    return target


def tag():
    """The platform: the C library that this machine has, which is the oldest that the wheel can promise."""
    libc, version = platform.libc_ver()
    if libc == "glibc":
        return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"
    return f"linux_{platform.machine()}"


def wheel(staged, folder):
    """The wheel of a staged package."""
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    info = f"gpuwhy-{version}.dist-info"
    files = {
        str(path.relative_to(staged)): path.read_bytes() for path in sorted(staged.glob("gpuwhy/*"))
    }
    files["gpuwhy.pth"] = (SOURCE / "gpuwhy.pth").read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: gpuwhy\nVersion: {version}\nRequires-Python: >=3.10\n"
        "License: Apache-2.0\nSummary: Steps, spans and marks of Python programs for gpuwhy.\n"
    ).encode()
    # Engines call this in each of their processes, before they take their functions in hand.
    files[f"{info}/entry_points.txt"] = (
        "[vllm.general_plugins]\ngpuwhy = gpuwhy.engine:register\n\n"
        "[sglang.srt.plugins]\ngpuwhy = gpuwhy.engine:register\n"
    ).encode()
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: gpuwhy\nRoot-Is-Purelib: false\n"
        f"Tag: cp310-abi3-{tag()}\n"
    ).encode()
    records = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        records.append(f"{name},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = ("".join(records) + f"{info}/RECORD,,\n").encode()
    path = folder / f"gpuwhy-{version}-cp310-abi3-{tag()}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, content)
    return path


def main():
    library, folder = Path(sys.argv[1]), Path(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    print(wheel(stage(library, folder), folder))


if __name__ == "__main__":
    main()
