"""The parts of gpu-probe-check: device probes on a machine with a GPU; see scripts/gpu-probe-check.sh.

They are parts as those of check.py, which runs them.
"""

import json
import os
import statistics
import subprocess
import sys

from parts import Skip, figure

BIN = os.environ["GPUWHY_CHECK_BIN"]
STANDIN = os.environ.get("GPUWHY_CHECK_STANDIN") == "1"
PROBE = os.path.join(BIN, "gpuwhy-probe")
PROGRAM = os.path.join(BIN, "gpuprobe")
KERNELS = os.path.join(BIN, "kernels")
ROUNDS = int(os.environ.get("ROUNDS", "3" if STANDIN else "15"))
# The simulator has time for little.
LAUNCHES = 2 if STANDIN else 200


class Failed(Exception):
    """A program did not do what it should."""


def environment():
    env = {**os.environ, "GPUWHY_INTERPOSE": os.path.join(BIN, "libgpuwhy_interpose.so")}
    if STANDIN:
        env["GPUWHY_STANDIN_EXECUTES"] = "1"
    return env


def run(command, timeout=80):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment())
    if done.returncode:
        raise Failed(f"{' '.join(command)[:200]}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done


def said(command):
    """The document that a program prints in the end."""
    return json.loads(run(command).stdout.strip().splitlines()[-1])


def launched(module, kernel, grid, block, *params, rounds=ROUNDS, launches=LAUNCHES, words=0, under=()):
    return said([*under, PROGRAM, "run", os.path.join(KERNELS, module), kernel, grid, block,
                 str(rounds), str(launches), str(words), *params])  # fmt: skip


def probed(folder, *options):
    """`gpuwhy probe run` and where it writes what it found."""
    into = os.path.join(folder, "found.json")
    return [PROBE, "run", "--no-cache", "--output", into, *options, "--"], into


def part_conformance(folder):
    """The files of bpf_conformance as kernels of one module."""
    told = {}
    for form in ("promoted", "in_memory"):
        module = os.path.join(KERNELS, f"vectors.{form}.ptx")
        told[form] = json.loads(run([PROGRAM, "vectors", module, os.path.join(KERNELS, "vectors.txt")]).stdout)
    line = "; ".join(
        f"{form}: {t['one_thread']} and {t['a_warp']} of {t['kernels']} right with 1 and 32 threads" for form, t in told.items()
    )
    if any(t["one_thread"] != t["kernels"] or t["a_warp"] != t["kernels"] for t in told.values()):
        raise Failed(f"{line}: {[t['wrong'] for t in told.values()]}")
    return line, told


def counts(found):
    """Warps and bytes that the probe `counts` has counted."""
    total = [0, 0]
    for image in found["images"]:
        for context in image["contexts"]:
            for entry in context["maps"][0]["entries"]:
                total[entry["key"][0]] += int.from_bytes(bytes(entry["bytes"]), "little")
    return total


def part_swap(folder):
    """Whether the driver takes the images that come back, by each way to it and each function that loads."""
    command, into = probed(folder, "--object", os.path.join(KERNELS, "counts.bpf.o"))
    images = {
        "module": "kernels.ptx", "moduleex": "kernels.ptx", "fatbinary": "zstd.fatbin", "wrapper": "lz4.fatbin",
        "file": "zstd.fatbin", "library": "zstd.fatbin", "libraryfile": "kernels.ptx", "graph": "kernels.ptx",
    }  # fmt: skip
    told, wrong = {}, []
    for way in ("dlsym", "asked"):
        for load, image in images.items():
            words = [os.path.join(BIN, "loads"), way, load, os.path.join(KERNELS, image), "_Z4copyPKfPf", "1", "3"]
            alone, under = run(words).stdout, run([*command, *words]).stdout
            with open(into) as file:
                found = json.load(file)
            fate = [image["fate"] for image in found["images"]]
            right = alone == under and counts(found) == [24, 3072]
            told[f"{way} {load}"] = {"right": right, "fate": fate, "counts": counts(found), "same_output": alone == under}
            if not right:
                wrong.append(f"{way} {load}")
    line = f"{len(told) - len(wrong)} of {len(told)} ways to load: the same output, and every warp counted"
    if wrong:
        raise Failed(f"{line}; not {', '.join(wrong)}: {told[wrong[0]]}")
    return line, told


def part_clocks(folder):
    """What the device's clock and its counters cost."""
    shape = ("4", "64") if STANDIN else ("1024", "1024")
    told = launched("clocks.ptx", "clocks", "1", "1", "zeros:64", rounds=3, launches=1, words=4)
    least, most, cycles, _ = told["memory"][0]["words"]
    data = {"globaltimer_step_ns": [least, most], "globaltimer_cycles_a_reading": cycles / 4096}
    threads = int(shape[0]) * int(shape[1])
    for kernel in ("to_one_word", "by_warp", "by_warp_and_sm"):
        us = launched("clocks.ptx", kernel, *shape, "zeros:65536", launches=2 if STANDIN else 20)["us"]
        data[kernel] = {"us": figure(us), "added_per_ns": threads * 16 / (statistics.median(us) * 1e3)}
    line = f"globaltimer goes by {least} to {most} ns, {cycles / 4096:.0f} cycles a reading; added per ns: " + ", ".join(
        f"{kernel} {data[kernel]['added_per_ns']:.1f}" for kernel in ("to_one_word", "by_warp", "by_warp_and_sm")
    )
    return line, data


def compared(us, sums, more):
    """Each way that a kernel was run: how long it took, also beside `native`, whether its output is the same, and `more` of it."""
    base = statistics.median(us["native"])
    return {
        way: {"us": figure(values), "ratio": statistics.median(values) / base, "same_output": sums[way] == sums["native"], **more[way]}
        for way, values in us.items() if values
    }  # fmt: skip


def ratios(rows):
    """One line of all that were compared."""
    return "; ".join(
        f"{name}: " + ", ".join(f"{way} {row['ratio']:.3f}" for way, row in of.items() if way != "native")
        for name, of in rows.items()
    )


SMALL, LARGE = (("8", "16384"), ("64", "65536")) if STANDIN else (("4096", str(1 << 20)), ("262144", str(1 << 26)))
SIDE = 32 if STANDIN else 2048
# Kernel: module, grid, block, parameters.
WORK = {
    "saxpy, small": ("basic.ptx", "saxpy", SMALL[0], "256",
                     (f"random:{SMALL[1]}", f"random:{SMALL[1]}", "f32:2", f"u32:{SMALL[1]}")),
    "saxpy, large": ("basic.ptx", "saxpy", LARGE[0], "256",
                     (f"random:{LARGE[1]}", f"random:{LARGE[1]}", "f32:2", f"u32:{LARGE[1]}")),
    "gemm_tiled": ("gemm.ptx", "gemm_tiled", f"{SIDE // 16},{SIDE // 16}", "16,16",
                   (f"zeros:{4 * SIDE * SIDE}", f"random:{SIDE * SIDE}", f"random:{SIDE * SIDE}",
                    f"u32:{SIDE}", f"u32:{SIDE}", f"u32:{SIDE}")),
    "one block": ("basic.ptx", "saxpy", "1", "32", ("random:32", "random:32", "f32:2", "u32:32")),
}  # fmt: skip
TOOLS = ("nothing", "counts", "returns", "tail", "blocks", "work")


def part_cost(folder):
    """A launch as it is, with the same image through us, with each probe, and with a probe that is switched off."""
    rows, wrong = {}, []
    for name, (module, kernel, grid, block, params) in WORK.items():
        launches = LAUNCHES if name != "gemm_tiled" or STANDIN else 20
        ways, threads = {"native": (), "native again": ()}, 1
        for side in f"{grid},{block}".split(","):
            threads *= int(side)
        for tool in TOOLS:
            room = ("--threads", str(threads), "--memory", "16384")
            command, into = probed(folder, "--object", os.path.join(KERNELS, f"{tool}.bpf.o"), *room)
            ways[tool] = tuple(command)
        ways["counts, off"] = tuple(probed(folder, "--off", "--object", os.path.join(KERNELS, "counts.bpf.o"))[0])
        us, caller, sums = {way: [] for way in ways}, {way: [] for way in ways}, {}
        # Interleaved: a GPU's clock drifts.
        for _ in range(2 if STANDIN else 5):
            for way, under in ways.items():
                if way == "work" and name == "saxpy, large":
                    continue
                told = launched(module, kernel, grid, block, *params, rounds=3, launches=launches, under=under)
                if under:
                    with open(into) as file:
                        fates = [image["fate"] for image in json.load(file)["images"]]
                    if fates != ["with probes"]:
                        raise Failed(f"{name}, {way}: {fates}")
                us[way] += told["us"]
                caller[way].append(told["caller_ns"])
                sums.setdefault(way, [memory["sum"] for memory in told["memory"]])
        rows[name] = compared(us, sums, {way: {"caller_ns": statistics.median(ns)} for way, ns in caller.items() if ns})
        wrong += [f"{name}, {way}" for way, row in rows[name].items() if not row["same_output"]]
    if wrong:
        raise Failed(f"other outputs: {', '.join(wrong)}")
    return ratios(rows), rows


def part_torch(folder):
    """Stock PyTorch, and a kernel that Triton compiles: which kernels are reached, and whether the output is the same."""
    if STANDIN:
        raise Skip("PyTorch runs on no stand-in")
    code = (
        "import torch\n"
        "torch.manual_seed(1)\n"
        "x = torch.randn(512, 512, device='cuda')\n"
        "print(float((x @ x).sum()), float(torch.softmax(x, 1).std()))\n"
        "try:\n"
        "    f = torch.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).sum(1))\n"
        "    print(float(f(x).sum()))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    words = [sys.executable, "-c", code]
    alone = run(words, timeout=150).stdout
    command, into = probed(folder, "--object", os.path.join(KERNELS, "counts.bpf.o"))
    under = run([*command, *words], timeout=150).stdout
    with open(into) as file:
        found = json.load(file)
    ways = {}
    for image in found["images"]:
        for way, count in image["ways"].items():
            ways[way] = ways.get(way, 0) + count
    with_probes = sum(image["probes"] for image in found["images"])
    data = {"same_output": alone == under, "images": len(found["images"]), "with_probes": with_probes, "kernels": ways,
            "counts": counts(found), "ms_an_image": figure([image["ms"] for image in found["images"]] or [0, 0])}  # fmt: skip
    if alone != under:
        raise Failed(f"the output is another: {alone!r} {under!r}")
    return f"{with_probes} of {len(found['images'])} images with probes, the same output; kernels: {ways}", data


def part_steal(folder):
    """A kernel whose blocks are uneven, as it is and where its blocks take their turns themselves, in three orders."""
    blocks, work = ("2400", "3") if STANDIN else ("40000", "300")
    ways = {"native": (), "native again": ()}
    for order in ("in order", "reversed", "longest"):
        objects = () if order == "in order" else ("--object", os.path.join(KERNELS, f"{order}.bpf.o"))
        command, into = probed(folder, "--steal", "uneven", "--budget", "100000", *objects)
        ways[order] = tuple(command)
    rows, wrong = {}, []
    for prologue in (0, 10) if STANDIN else (0, 10, 100, 1000):
        us, sums, stolen = {way: [] for way in ways}, {}, {}
        # Interleaved: a GPU's clock drifts.
        for _ in range(1 if STANDIN else 3):
            for way, under in ways.items():
                told = launched("steal.ptx", "uneven", blocks, "64", f"uneven:{blocks}", f"zeros:{4 * 64 * int(blocks)}",
                                f"u32:{prologue}", f"u32:{work}", f"u32:{blocks}", rounds=2 if STANDIN else 3, launches=1 if STANDIN else 20,
                                under=under)  # fmt: skip
                us[way] += told["us"]
                sums.setdefault(way, [memory["sum"] for memory in told["memory"]])
                if under:
                    with open(into) as file:
                        stolen[way] = json.load(file)["images"][0]["stealing"]["kernels"][0]["launches"]
        rows[prologue] = compared(us, sums, {way: {"launches": stolen.get(way)} for way in ways})
        for way, row in rows[prologue].items():
            if not row["same_output"] or (row["launches"] is not None and not row["launches"]["stolen"]):
                wrong.append(f"{way} at {prologue}: {row['launches']}, same output: {row['same_output']}")
    if wrong:
        raise Failed("; ".join(wrong))
    return ratios({f"prologue {prologue}": of for prologue, of in rows.items()}), rows


PLACES = ("array", "per_sm_array", "block_array", "host_array")


def part_placement(folder):
    """One count for each access, in maps that lie in different memory: whether they agree, and what each costs."""
    rows, wrong = {}, []
    for name in ("saxpy, small", "gemm_tiled"):
        module, kernel, grid, block, params = WORK[name]
        launches = LAUNCHES if STANDIN else 20
        ways = {"native": (), "native again": ()}
        for place in PLACES:
            ways[place] = tuple(probed(folder, "--object", os.path.join(KERNELS, f"placement.{place}.bpf.o"))[0])
        into = probed(folder)[1]
        us, sums, counted = {way: [] for way in ways}, {}, {}
        # Interleaved: a GPU's clock drifts.
        for _ in range(1 if STANDIN else 3):
            for way, under in ways.items():
                told = launched(module, kernel, grid, block, *params, rounds=3, launches=launches, under=under)
                us[way] += told["us"]
                sums.setdefault(way, [memory["sum"] for memory in told["memory"]])
                if under:
                    with open(into) as file:
                        contexts = [context for image in json.load(file)["images"] for context in image["contexts"]]
                    entries = [entry["bytes"] for context in contexts for entry in context["maps"][0]["entries"]]
                    counted[way] = sum(int.from_bytes(bytes(one), "little") for one in entries)
        rows[name] = compared(us, sums, {way: {"counted": counted.get(way)} for way in ways})
        wrong += [f"{name}, {way}: another output" for way, row in rows[name].items() if not row["same_output"]]
        if len(set(counted.values())) != 1 or not all(counted.values()):
            wrong.append(f"{name}: {counted}")
    if wrong:
        raise Failed("; ".join(wrong))
    return ratios(rows), rows


# How often, MiB left free, MiB of managed memory, MiB a launch, ms in between.
PAGING = {
    "walk": ("sequential", ("3", "0", "64", "2", "20") if STANDIN else ("4", "4096", "8192", "8", "10")),
    "kept": ("hot", ("10", "0", "64", "2", "40") if STANDIN else ("200", "256", "512", "2", "10")),
}


def part_policy(folder):
    """Managed memory that is larger than what is free: kernels as they are, with a policy that decides and does nothing, and with it."""
    if STANDIN:
        os.environ["GPUWHY_STANDIN_MANAGED_MIB"] = "16"
    rows, wrong = {}, []
    for how, (tool, words) in PAGING.items():
        into = os.path.join(folder, "found.json")
        command = [PROBE, "policy", "--object", os.path.join(KERNELS, f"{tool}.bpf.o"), "--output", into]
        ways = {"native": (), "native again": (), "decides": (*command, "--dry-run", "--"), tool: (*command, "--")}
        us, sums, done = {way: [] for way in ways}, {}, {}
        # Interleaved: a GPU's clock drifts.
        for _ in range(1 if STANDIN else 2):
            for way, under in ways.items():
                told = said([*under, PROGRAM, "paging", os.path.join(KERNELS, "paging.ptx"), how, *words])
                us[way] += told["us"]
                sums.setdefault(way, told["sum"])
                if under:
                    with open(into) as file:
                        process = json.load(file)["policy"]["processes"][0]
                    done[way] = {key: process[key] for key in ("events", "done", "refused")}
        rows[how] = compared(us, sums, {way: done.get(way, {}) for way in ways})
        wrong += [f"{how}, {way}: another output" for way in ways if sums[way] != sums["native"]]
        moved = {way: of["done"]["prefetches"] + of["done"]["advice"] for way, of in done.items()}
        if moved["decides"] or not moved[tool] or done[tool]["refused"]["by_driver"]:
            wrong.append(f"{how}: {done}")
    if wrong:
        raise Failed("; ".join(wrong))
    return ratios(rows), rows


# What stands for machine code over the stand-in: the PTX that it was made of.
SOURCES = {"alone.sm_90.cubin": "kernels.ptx", "basic.sm_90.cubin": "basic.ptx"}


def by_sanitizer(folder, tool, module):
    """`gpuwhy probe run --sanitizer` for a module of machine code."""
    library = os.path.join(BIN, "libgpuwhy_standin.so" if STANDIN else "sanitizer/libsanitizer-public.so")
    options = ["--object", os.path.join(KERNELS, f"{tool}.bpf.o"), f"--sanitizer={library}"]
    if STANDIN:
        os.environ["GPUWHY_STANDIN_SOURCE"] = os.path.join(KERNELS, SOURCES[module])
    else:
        options += ["--ptxas", os.path.join(BIN, "ptxas.sh")]
    return probed(folder, *options)


def part_code(folder):
    """Machine code without PTX: programs that Sanitizer calls from it, what they count and what that costs."""
    told, wrong, module = {}, [], "alone.sm_90.cubin"
    command, into = by_sanitizer(folder, "counts", module)
    for load in ("module", "moduleex", "file", "library", "graph"):
        words = [os.path.join(BIN, "loads"), "asked", load, os.path.join(KERNELS, module), "_Z4copyPKfPf", "1", "3"]
        alone, under = run(words).stdout, run([*command, *words]).stdout
        with open(into) as file:
            found = json.load(file)
        fates, notes = [image["fate"] for image in found["images"]], found["notes"]
        right = alone == under and counts(found) == [24, 3072]
        told[load] = {"right": right, "fates": fates, "notes": notes, "counts": counts(found), "same_output": alone == under}
        if not right:
            wrong.append(f"{load}: {told[load]}")
    line = f"{len(told) - len(wrong)} of {len(told)} ways to load: the same output, and every warp counted"
    if wrong:
        raise Failed(f"{line}; {wrong[0]}")
    rows, module = {}, "basic.sm_90.cubin"
    for name in ("saxpy, small", "one block"):
        _, kernel, grid, block, params = WORK[name]
        ways = {"native": (), "native again": ()}
        for tool in ("nothing", "counts"):
            ways[tool] = tuple(by_sanitizer(folder, tool, module)[0])
        us, sums = {way: [] for way in ways}, {}
        # Interleaved: a GPU's clock drifts.
        for _ in range(1 if STANDIN else 3):
            for way, under in ways.items():
                ran = launched(module, kernel, grid, block, *params, rounds=3, launches=LAUNCHES, under=under)
                us[way] += ran["us"]
                sums.setdefault(way, [memory["sum"] for memory in ran["memory"]])
        rows[name] = compared(us, sums, {way: {} for way in ways})
        wrong += [f"{name}, {way}: another output" for way, row in rows[name].items() if not row["same_output"]]
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{line}; {ratios(rows)}", {"loads": told, "cost": rows, **({} if STANDIN else stock(folder))}


def stock(folder):
    """Stock PyTorch, all of whose kernels are machine code: which are reached, and whether the output is the same."""
    try:
        run([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"])
    except Failed:
        return {"torch": "not on this machine"}
    code = "import torch\ntorch.manual_seed(1)\nx = torch.randn(256, 256, device='cuda')\nprint(float((x @ x).sum()))\n"
    words = [sys.executable, "-c", code]
    command, into = by_sanitizer(folder, "counts", "")
    try:
        alone, under = run(words, timeout=60).stdout, run([*command, *words], timeout=120).stdout
    except (Failed, subprocess.TimeoutExpired) as error:
        return {"torch": str(error)[-500:]}
    with open(into) as file:
        found = json.load(file)
    fates = {}
    for image in found["images"]:
        fates[image["fate"]] = fates.get(image["fate"], 0) + 1
    return {"torch": {"same_output": alone == under, "fates": fates, "counts": counts(found), "notes": found["notes"]}}


PARTS = {
    "probe-conformance": (60, part_conformance),
    "probe-swap": (90, part_swap),
    "probe-clocks": (60, part_clocks),
    "probe-cost": (240, part_cost),
    "probe-placement": (60, part_placement),
    "probe-steal": (90, part_steal),
    "probe-policy": (90, part_policy),
    "probe-code": (240, part_code),
    "probe-torch": (200, part_torch),
}
