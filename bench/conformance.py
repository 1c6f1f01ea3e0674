"""What bench/conformance.sh saw, added to the results of probes: conformance.py GPUWHY OUTPUT COMMAND."""

import json
import re
import sys

from measure import made, write

PATH = "bench/results/probes.json"
said = open(sys.argv[2]).read()
result = json.load(open(PATH))


def seen(pattern):
    found = re.findall(pattern, said)
    if not found:
        sys.exit(f"conformance: nothing printed like {pattern}")
    return [tuple(map(int, numbers if isinstance(numbers, tuple) else (numbers,))) for numbers in found]


def count(value, n):
    return {"value": value, "spread": [value, value], "n": n}


[(passed, total)] = seen(r"(\d+) of (\d+) vectors, 1 and 32 threads")
[(caught, planted)] = seen(r"(\d+) of (\d+) mistakes caught")
[(alone, kernels)] = seen(r"(\d+) of (\d+) kernels as NumPy has it")
[(probed, with_probe)] = seen(r"(\d+) of (\d+) kernels with a probe as NumPy has it")
[(assembled, tried)] = seen(r"(\d+) of (\d+) programs assembled")
random = seen(r"(\d+) programs of seed (\d+) in two forms; lanes parted in (\d+) runs")
programs = sum(count for count, _, _ in random)
figures = {
    "conformance_passed": count(passed, total),
    "conformance_total": count(total, total),
    "planted_bugs_caught": count(caught, planted),
    "simulated_kernels": count(alone, kernels),
    "simulated_kernels_with_probe": count(probed, with_probe),
    "programs_assembled": count(assembled, tried),
    "programs_simulated": count(programs, programs),
    "programs_parted": count(sum(parted for _, _, parted in random), 2 * programs),
}
result["figures"] = {**result["figures"], **figures}
result["conformance_made"] = made(sys.argv[3])
write("probes", result)
for name, figure in figures.items():
    print(f"{name}: {figure['value']} of {figure['n']}")
