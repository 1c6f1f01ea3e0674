"""Reads samples of a data set in shards, one shard after the other, as training jobs do; steps marked through gpuwhy.h.

    shards.py make FOLDER NUMBER    writes the shards, of which only the first one is left in memory
    shards.py read FOLDER           takes steps on the shard whose number is the first byte of FOLDER/does
"""

import ctypes
import mmap
import os
import random
import sys
import time

from work import computes

SHARD, SAMPLE, BATCH = 128 << 20, 16 << 10, 8


def shard(folder, number):
    return os.path.join(folder, f"shard{number}")


def make(folder, number):
    for n in range(number):
        with open(shard(folder, n), "wb") as out:
            for _ in range(SHARD >> 20):
                out.write(os.urandom(1 << 20))
            os.fsync(out.fileno())
            if n > 0:
                os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(folder):
    marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
    with open(os.path.join(folder, "does"), "r+b") as file:
        does = mmap.mmap(file.fileno(), 1)
    number, files, order = 0, {}, []
    with open(os.path.join(folder, "steps"), "w", buffering=1) as log:
        while True:
            if does[0] != number or not order:
                number = does[0]
                order = random.sample(range(SHARD // SAMPLE), SHARD // SAMPLE)
            if number not in files:
                files[number] = os.open(shard(folder, number), os.O_RDONLY)
                # Samples are small and far apart.
                os.posix_fadvise(files[number], 0, 0, os.POSIX_FADV_RANDOM)
            began = time.monotonic_ns()
            marks.begin(0)
            for _ in range(BATCH):
                os.pread(files[number], SAMPLE, order.pop() * SAMPLE)
            computes(5)
            marks.end()
            log.write(f"{began} {time.monotonic_ns() - began}\n")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2])
