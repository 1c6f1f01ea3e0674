"""What the host did to a session, by the kernel's own counters: measured beside `gpuwhy watch`, whose own readings are
what is judged."""

import os
import threading
import time

# Between two readings, s: /proc/stat counts in 10 ms a CPU.
EVERY = 0.5


class Ratio:
    """Of two counters that only grow, read all the time: by how much one grew for each unit of the other."""

    def __init__(self):
        self.readings, self.ends = [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def read(self):
        """The two counters now."""
        raise NotImplementedError

    def run(self):
        while not self.ends.wait(EVERY):
            self.readings.append((time.monotonic_ns(), *self.read()))

    def end(self):
        self.ends.set()
        self.thread.join()

    def between(self, begin=0, to=2**63):
        """Between the readings next to these (monotonic ns); none without two of them."""
        near = lambda at: min(self.readings, key=lambda one: abs(one[0] - at))
        if not self.readings:
            return None
        (_, first, per), (_, last, of) = near(begin), near(to)
        return (last - first) / (of - per) if of > per else None

    def rose(self, begin, to, times):
        """Whether it was more than so many times its mean of the session."""
        then, usual = self.between(begin, to), self.between()
        return then is not None and then > times * usual


class Stolen(Ratio):
    """Which share of the CPUs' time the hypervisor took."""

    def read(self):
        with open("/proc/stat") as file:
            # user nice system idle iowait irq softirq steal; what guests had is in user and nice.
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return ticks[7], sum(ticks)


class Disks(Ratio):
    """How long a request of the disks took, ms, waiting for the device included: the time that requests were under way
    by the requests that ended (Documentation/admin-guide/iostats.rst, field 11 by fields 1, 5, 12 and 16)."""

    def read(self):
        under_way, ended = 0, 0
        with open("/proc/diskstats") as file:
            for line in file:
                name, fields = line.split()[2], [int(word) for word in line.split()[3:]]
                # A partition's requests are its disk's.
                if os.path.isdir(f"/sys/block/{name}"):
                    under_way += fields[10]
                    ended += sum(fields[at] for at in (0, 4, 11, 15) if at < len(fields))
        return under_way, ended
