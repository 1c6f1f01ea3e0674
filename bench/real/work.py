"""What the loops beside it do for so long."""

import time


def computes(ms):
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass
