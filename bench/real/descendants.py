"""Processes that this one started, and those that they started."""

import ctypes
import os
import signal

# include/uapi/linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36


def adopt():
    """Those whose parent ends become children of this process and not of the first one."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents():
    """The parent of each process."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                found[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def kill():
    """Ends all of them. Who starts others meanwhile is found in the next round."""
    for _ in range(10):
        of, ours = parents(), {os.getpid()}
        while more := {pid for pid, parent in of.items() if parent in ours} - ours:
            ours |= more
        if len(ours) == 1:
            return
        for pid in ours - {os.getpid()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
