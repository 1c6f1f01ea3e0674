"""A file system of somebody else's (FUSE), and a loop that reads its files; steps are marked through gpuwhy.h.

    files.py serve FOLDER [HOST PORT]
                               mounts FOLDER/files; the first byte of FOLDER/does: 1 each read and write of a
                               file of it sleeps 8 ms, 2 computes 8 ms, 3
                               sleeps 40 ms. With HOST and PORT it first asks there
    files.py answer HOST PORT  answers it
    files.py read FOLDER       each step reads one of the files
"""

import ctypes
import errno
import mmap
import os
import random
import socket
import stat
import sys
import time

from work import computes

FILES, SIZE = 40, 96 << 10


def answer(host, port):
    with socket.create_server((host, int(port))) as listens:
        asks, _ = listens.accept()
        while asked := asks.recv(1 << 16):
            asks.sendall(asked)


def serve(folder, *address):
    import fusepy

    asked = socket.create_connection(address) if address else None

    with open(os.path.join(folder, "does"), "r+b") as file:
        does = mmap.mmap(file.fileno(), 1)

    def serves():
        if asked:
            asked.sendall(bytes(512))
            asked.recv(512, socket.MSG_WAITALL)
        if does[0] == 1:
            time.sleep(0.008)
        if does[0] == 2:
            computes(8)
        if does[0] == 3:
            time.sleep(0.04)

    class Files(fusepy.Operations):
        """All in memory."""

        def __init__(self):
            self.files = {f"/file{number}": bytearray(SIZE) for number in range(FILES)}
            self.folders = {"/"}

        def data(self, path):
            if path not in self.files:
                raise fusepy.FuseOSError(errno.ENOENT)
            return self.files[path]

        def getattr(self, path, handle=None):
            if path in self.folders:
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            return {"st_mode": stat.S_IFREG | 0o644, "st_nlink": 1, "st_size": len(self.data(path))}

        def readdir(self, path, handle):
            return [".", "..", *(os.path.basename(one) for one in self.files if os.path.dirname(one) == path)]

        def mkdir(self, path, mode):
            self.folders.add(path)

        def create(self, path, mode, info=None):
            self.files[path] = bytearray()
            return 0

        def rename(self, old, new):
            self.files[new] = self.files.pop(old)

        def unlink(self, path):
            self.files.pop(path)

        def truncate(self, path, length, handle=None):
            data = self.data(path)
            data[length:] = bytes(max(0, length - len(data)))

        def write(self, path, data, offset, handle):
            serves()
            of = self.data(path)
            of[len(of):] = bytes(max(0, offset - len(of)))
            of[offset:offset + len(data)] = data
            return len(data)

        def read(self, path, size, offset, handle):
            serves()
            return bytes(self.data(path)[offset:offset + size])

    with open(os.path.join(folder, "server.pid"), "w") as out:
        out.write(str(os.getpid()))
    fusepy.FUSE(Files(), os.path.join(folder, "files"), foreground=True, nothreads=True)


def read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(32 << 10):
            pass


def reads(folder):
    marks = ctypes.CDLL(os.path.join(folder, "marks.so"))
    with open(os.path.join(folder, "steps"), "w", buffering=1) as log:
        while True:
            began = time.monotonic_ns()
            marks.begin(0)
            computes(2)
            read(os.path.join(folder, "files", f"file{random.randrange(FILES)}"))
            computes(1)
            marks.end()
            log.write(f"{began} {time.monotonic_ns() - began}\n")
            time.sleep(0.002)


{"serve": serve, "answer": answer, "read": reads}[sys.argv[1]](*sys.argv[2:])
