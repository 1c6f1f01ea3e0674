"""Which share of the CPUs' time the hypervisor took, by /proc/stat: measured beside `gpuwhy watch`, whose own readings are what
is judged."""

import threading
import time

# Between two readings, s: the file counts in 10 ms a CPU.
EVERY = 0.5


class Stolen:
    """Readings since it began: when (monotonic ns), stolen ticks, all ticks."""

    def __init__(self):
        self.readings, self.ends = [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ends.wait(EVERY):
            with open("/proc/stat") as file:
                # user nice system idle iowait irq softirq steal; what guests had is in user and nice.
                ticks = [int(word) for word in file.readline().split()[1:9]]
            self.readings.append((time.monotonic_ns(), ticks[7], sum(ticks)))

    def end(self):
        self.ends.set()
        self.thread.join()

    def share(self, begin=0, to=2**63):
        """Of the time between the readings next to these; none without two of them."""
        near = lambda at: min(self.readings, key=lambda one: abs(one[0] - at))
        if not self.readings:
            return None
        first, last = near(begin), near(to)
        return (last[1] - first[1]) / (last[2] - first[2]) if last[2] > first[2] else None

    def rose(self, begin, to):
        """Whether it took more then than all the time."""
        then, usual = self.share(begin, to), self.share()
        return then is not None and then > usual
