"""Runs in each Python process of a recording, before the program."""

import os


def begin(open_ring):
    """Opens the ring that a recording names."""
    ring = os.environ.get("GPUWHY_RING")
    if ring:
        open_ring(ring)
