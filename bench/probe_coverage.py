"""Kernels of stock wheels by the way in which a probe reaches them: see probe-coverage.sh."""

import glob
import json
import os
import subprocess
import sys
import tempfile

from measure import GPUWHY, made, write

# As PyPI has them for Linux on x86-64: what `pip install vllm` brings that has device code.
WHEELS = [
    "torch==2.9.1", "vllm==0.12.0", "nvidia-cublas-cu12==12.8.4.1", "nvidia-cudnn-cu12==9.10.2.21", "nvidia-nccl-cu12==2.27.5",
]
# The ways, as `probe coverage` calls them.
WAYS = ["ptx", "ptx_in_cubin", "machine_code", "not_for_device"]
CACHE = os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gpuwhy/wheels"
)


def fetched(wheel):
    """The path of a wheel, fetched unless it is there."""
    name, version = wheel.split("==")
    like = os.path.join(CACHE, f"{name.replace('-', '_')}-{version}-*.whl")
    if not glob.glob(like):
        pip = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.12",
            "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64", "--platform=manylinux2014_x86_64",
            "--platform=manylinux_2_31_x86_64", "--platform=manylinux1_x86_64", "--dest", CACHE, wheel,
        ]
        subprocess.run(pip, check=True)
    found = glob.glob(like)
    if len(found) != 1:
        sys.exit(f"{CACHE} holds {len(found)} files like {like}")
    return found[0]


def looked_into(path):
    """What `probe coverage` says of all kernels of a wheel, with what it took."""
    command = [GPUWHY + "-probe", "coverage", "--json", "--kernels", "*", path]
    with tempfile.TemporaryFile() as out:
        _, status, used = os.wait4(subprocess.Popen(command, stdout=out).pid, 0)
        # 1: something could not be read, which the document says.
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            sys.exit(f"{path}: exit status {status}")
        out.seek(0)
        document = json.load(out)
    return document, {"cpu_s": used.ru_utime + used.ru_stime, "rss_mib": used.ru_maxrss / 1024}


def row(wheel, document, took):
    kernels = [kernel for file in document["files"] for kernel in file["list"]]
    return {
        "wheel": wheel,
        "files": len(document["files"]),
        "kernels": document["kernels"],
        **{way: document["reached"][way] for way in WAYS},
        "older_ptx": sum(kernel["older_ptx"] for kernel in kernels),
        "not_linked": sum(file["not_linked"] for file in document["files"]),
        "not_read": sum(len(file["not_read"]) for file in document["files"]),
        "cpu_s": round(took["cpu_s"], 1),
        "rss_mib": round(took["rss_mib"]),
    }


def main():
    os.makedirs(CACHE, exist_ok=True)
    wheels = []
    for wheel in WHEELS:
        wheels.append(row(wheel, *looked_into(fetched(wheel))))
        print(wheels[-1], flush=True)
    whole = lambda value: {"value": value, "spread": [value, value], "n": len(wheels)}
    total = lambda column: sum(wheel[column] for wheel in wheels)
    figures = {column: whole(total(column)) for column in ("kernels", *WAYS, "older_ptx", "not_read")}
    figures["rss_mib"] = whole(max(wheel["rss_mib"] for wheel in wheels))
    write("probe-coverage", {"made": made("make bench-probe-coverage"), "figures": figures, "wheels": wheels})


main()
