"""A loop of steps that are not alike, all under one name, marked through gpuwhy.h: FOLDER and what is uneven.

`saves`: every 50th step takes 20 times as long. `evaluates`: every 300th takes 1.5 s. `lengths`: each step has a length
between 1 and 64, and takes so long; `unsized`: the same, and the length is not reported.
"""

import ctypes
import hashlib
import os
import random
import sys
import time

# What a step of length 1 computes: about 1.5 ms.
UNIT = 2_500


def computes(length):
    hashlib.pbkdf2_hmac("sha256", b"step", b"of some length", max(int(length * UNIT), 1))


def length(kind, number, rng):
    """How much there is to do in a step."""
    if kind == "saves":
        return 120 if number % 50 == 0 else 6
    if kind == "evaluates":
        return 1000 if number % 300 == 0 else 6
    return 2 ** (6 * rng.random())


def main(folder, kind):
    rng = random.Random(7)
    marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
    with open(os.path.join(folder, "steps0"), "w", buffering=1) as log:
        number = 0
        while True:
            number += 1
            much = length(kind, number, rng)
            began = time.monotonic_ns()
            if kind == "lengths":
                marks.begin_sized(0, ctypes.c_longlong(int(1000 * much)))
            else:
                marks.begin(0)
            computes(much)
            marks.end()
            took = time.monotonic_ns() - began
            # By what was to do: a step of another length is no slower one.
            log.write(f"{began} {int(took / much)}\n")


main(*sys.argv[1:])
