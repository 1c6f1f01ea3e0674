"""The result of crates/inject/tests/kills.rs in the form of results: kills.py GPUWHY RAW COMMAND."""

import json
import sys

from measure import figure, made, share, write

raw = json.load(open(sys.argv[2]))
kills = raw["kills"]
n = kills["kills"]
restarts = raw["restarted_heard_ms"]
steps = raw["stopped"]["steps"]
write("kills", {
    "made": made(sys.argv[3]),
    "figures": {
        # Ended as they were ended and not otherwise, hung nowhere; the test fails at the first that does.
        "programs_that_ended_as_they_should": share(sum(kills["by"].values()), n),
        "ends_that_the_collector_heard": share(kills["gone"], kills["came"]),
        "records_torn": share(kills["torn"], kills["records"] + kills["torn"]),
        "slots_abandoned": share(kills["abandoned"], kills["records"] + kills["abandoned"]),
        "records_lost": share(kills["lost"], kills["records"] + kills["lost"]),
        "attend_max_ms": {"value": kills["attend_max_ms"], "spread": [0.0, kills["attend_max_ms"]],
                          "n": kills["attend_calls"]},
        "collector_grown_kib": figure([kills["rss_after_kib"] - kills["rss_before_kib"]]),
        "descriptors_left": figure([kills["descriptors_after"] - kills["descriptors_before"]]),
        "heard_after_restart_ms": figure(restarts),
        "heard_when_late_ms": figure([raw["late_heard_ms"]]),
        "steps_while_stopped_of_those_before": figure([steps[1] / steps[0]]),
    },
    "seen": raw,
})
