"""A client that asks a service on its own machine in each step, and the service; steps marked through gpuwhy.h.

The first byte of FOLDER/does says by how many ms more the service computes for an answer.
"""

import ctypes
import mmap
import os
import socket
import sys
import time

from work import computes


def serve(folder, asked):
    with open(os.path.join(folder, "does"), "r+b") as file:
        does = mmap.mmap(file.fileno(), 1)
    with open(os.path.join(folder, "service.pid"), "w") as out:
        out.write(str(os.getpid()))
    while asked.recv(1):
        computes(2 + does[0])
        asked.send(b"!")


def ask(folder, service):
    marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
    with open(os.path.join(folder, "steps"), "w", buffering=1) as log:
        while True:
            began = time.monotonic_ns()
            marks.begin(0)
            computes(1)
            service.send(b"?")
            service.recv(1)
            computes(1)
            marks.end()
            log.write(f"{began} {time.monotonic_ns() - began}\n")
            time.sleep(0.002)


here, there = socket.socketpair()
if os.fork() == 0:
    here.close()
    serve(sys.argv[1], there)
else:
    there.close()
    ask(sys.argv[1], here)
