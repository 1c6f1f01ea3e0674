"""What all parts of gpu-check and gpu-probe-check share."""

import statistics


class Skip(Exception):
    """A part cannot be run here, and why."""


def figure(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"value": middle, "spread": [min(values), max(values)], "quartiles": [low, high], "n": len(values)}
