"""`gpuwhy watch` over a program."""

import json
import os
import signal
import subprocess

from measure import GPUWHY


class Watch:
    """A running watch; its events have the time of the trace's clock, which is the monotonic one."""

    def __init__(self, program, folder, *options):
        self.events = os.path.join(folder, "events")
        self.trace = os.path.join(folder, "watch.trace")
        own = ["--json", "--force", "-o", self.trace, "--events", self.events, *options]
        self.child = subprocess.Popen(
            [GPUWHY, "watch", *own, *program.watched()],
            stdout=subprocess.DEVNULL, stderr=open(os.path.join(folder, "complaints"), "w"),
        )

    def read(self):
        """The events so far."""
        try:
            with open(self.events) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def end(self):
        """Ends it; all of its events."""
        self.child.send_signal(signal.SIGINT)
        self.child.wait(timeout=120)
        return self.read()
