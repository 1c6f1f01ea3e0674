"""A loop that appends to a file which it shares with others, under a lock on it (`flock`): FOLDER.

Each step computes 2 ms, takes the lock, writes a line and gives it up."""

import ctypes
import fcntl
import os
import sys
import time

from work import computes


def main(folder):
    marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
    shared = open(os.path.join(folder, "shared"), "w", buffering=1)
    with open(os.path.join(folder, "steps"), "w", buffering=1) as log:
        while True:
            began = time.monotonic_ns()
            marks.begin(0)
            computes(2)
            fcntl.flock(shared, fcntl.LOCK_EX)
            shared.seek(0)
            shared.write("a line\n")
            fcntl.flock(shared, fcntl.LOCK_UN)
            computes(1)
            marks.end()
            log.write(f"{began} {time.monotonic_ns() - began}\n")
            time.sleep(0.001)


main(sys.argv[1])
