"""Programs that nobody here wrote, each with how it is watched, which processes are whose, and how long its units of
work took by its own account."""

import glob
import os
import pwd
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Program:
    """What every program here can say."""

    # Whether its steps say what they were made of.
    has_batches = False

    def wait_for(self, what):
        """Returns as soon as that is true."""
        until = time.monotonic() + 60
        while not what():
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} did not start")
            time.sleep(0.2)

    def ready(self):
        """Returns as soon as it works, after `watch` began."""

    def took(self, begin, end):
        """The median duration of its units of work in a stretch of monotonic ns, by its own account, in ms; None if
        there is none."""
        return None

    def others(self):
        """The processes that its first one started."""
        pids = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True).stdout.split()
        return set(map(int, pids))

    def end(self):
        """Ends what `watch` does not."""


def logged(path, begin, end):
    """The mean duration in ms of the steps of a log that began in a stretch of ns. A line has a step's begin and duration in
    ns, and where a client wrote it, for how much of that the client itself waited for a CPU: that is no slowness of what
    it asked, and is taken off."""
    with open(path) as log:
        # The last line may not be whole.
        steps = [[int(word) for word in line.split()] for line in log if line.endswith("\n")]
    took = [(dur - sum(waited)) / 1e6 for ts, dur, *waited in steps if begin <= ts <= end]
    return statistics.fmean(took) if took else None


class Told(Program):
    """A program whose steps are marked, and which does what the first byte of its folder's `does` says."""

    def __init__(self, folder, gpuwhy):
        self.folder, self.steps = folder, os.path.join(folder, "steps")
        with open(os.path.join(folder, "does"), "wb") as file:
            file.write(b"\0")
        self.marks = os.path.join(folder, "marks.so")
        self.compile("marks.c", self.marks, "-shared", "-fPIC")

    def compile(self, source, to, *how):
        header = os.path.join(HERE, "../../crates/wire/include")
        command = ["cc", "-std=gnu11", "-O2", f"-I{header}", *how, os.path.join(HERE, source), "-o", to]
        subprocess.run(command, check=True)

    def ready(self):
        self.wait_for(self.has_begun)

    def has_begun(self):
        return os.path.exists(self.steps)

    def told(self, what):
        with open(os.path.join(self.folder, "does"), "r+b") as file:
            file.write(bytes([what]))

    def took(self, begin, end):
        return logged(self.steps, begin, end)


class Postgres(Program):
    """A server under pgbench: short transactions of an update, a select and a commit on few rows."""

    name, figure = "PostgreSQL under pgbench", "postgresql"

    def __init__(self, folder, gpuwhy):
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        self.binary = os.path.join(binaries, "postgres")
        self.tool = lambda name: os.path.join(binaries, name)
        self.folder = os.path.join(folder, "pg")
        user = pwd.getpwnam("postgres")
        os.makedirs(self.folder)
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        os.chmod(folder, 0o755)
        data = os.path.join(self.folder, "data")
        self.run(self.tool("initdb"), "-D", data, "-A", "trust")
        self.run(
            self.tool("pg_ctl"), "-D", data, "-w", "-l", os.path.join(self.folder, "log"),
            "-o", f"-c listen_addresses='' -k {self.folder} -c fsync=on", "start",
        )
        self.data = data
        self.run(self.tool("createdb"), "-h", self.folder, "bench")
        self.run(self.tool("pgbench"), "-h", self.folder, "-i", "-q", "-s", "5", "bench")
        script = os.path.join(self.folder, "script.sql")
        with open(script, "w") as out:
            out.write(
                "\\set aid random(1, 20)\n"
                "BEGIN;\n"
                "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
                "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
                "COMMIT;\n"
            )
        os.chmod(script, 0o644)
        with open(os.path.join(data, "postmaster.pid")) as file:
            self.pid = int(file.readline())
        self.clients = self.start(
            self.tool("pgbench"), "-h", self.folder, "-n", "-f", script, "-c", "2", "-j", "1", "-R", "150",
            "-T", "100000", "-l", "--log-prefix", os.path.join(self.folder, "took"), "bench",
        )

    def command(self, *command):
        return ["runuser", "-u", "postgres", "--", *command]

    def run(self, *command):
        subprocess.run(self.command(*command), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self, *command, **how):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self.command(*command), cwd="/", **{**quiet, **how})

    def watched(self):
        return ["-p", str(self.pid), "--step", f"uprobe:{self.binary}:PortalRun"]

    def session(self):
        return self.start(
            self.tool("psql"), "-h", self.folder, "-qAt", "bench",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )

    def took(self, begin, end):
        # pgbench's log: client, transaction, µs, script, epoch s, µs of it, lag. Its clock is that of the wall.
        ahead = time.time_ns() - time.monotonic_ns()
        took = []
        for path in glob.glob(os.path.join(self.folder, "took.*")):
            with open(path) as log:
                for line in log:
                    words = line.split()
                    if len(words) >= 6 and begin <= int(words[4]) * 10**9 + int(words[5]) * 1000 - ahead <= end:
                        took.append(int(words[2]) / 1e3)
        return statistics.fmean(took) if took else None

    def end(self):
        self.clients.terminate()
        self.clients.wait()
        self.run(self.tool("pg_ctl"), "-D", self.data, "-m", "immediate", "stop")


class Torch(Told):
    """Two ranks of PyTorch (DDP over gloo), each with a loader of one worker: torch_loop.py."""

    name, figure = "PyTorch DDP with loaders", "pytorch"
    python = "/usr/bin/python3"

    def __init__(self, folder, gpuwhy):
        super().__init__(folder, gpuwhy)
        self.steps += "0"

    def watched(self):
        return ["--", self.python, os.path.join(HERE, "torch_loop.py"), self.folder]

    def has_begun(self):
        return all(os.path.exists(os.path.join(self.folder, f"steps{rank}")) for rank in range(2))

    def pid(self, who):
        with open(os.path.join(self.folder, f"{who}.pid")) as file:
            return int(file.read())


class Uneven(Told):
    """A loop whose steps are not alike, under one name: uneven_loop.py. It takes two CPUs' worth of disturbance to
    slow it, as it has one thread."""

    kind = None

    def __init__(self, folder, gpuwhy):
        super().__init__(folder, gpuwhy)
        # By length: what a step of length 1 took.
        self.steps += "0"

    def watched(self):
        return ["--", sys.executable, os.path.join(HERE, "uneven_loop.py"), self.folder, self.kind]


class Saves(Uneven):
    """Every 50th step takes 20 times as long."""

    name, figure, kind = "a loop that saves", "saves", "saves"


class Evaluates(Uneven):
    """Every 300th step takes 1.5 s: the first one or two may be told, before the first trial."""

    name, figure, kind = "a loop that evaluates", "evaluates", "evaluates"


class Lengths(Uneven):
    """Steps of lengths from 1 to 64, reported as their sizes."""

    name, figure, kind = "steps of many lengths", "lengths", "lengths"


class Unsized(Uneven):
    """The same, and nobody says how long they are."""

    name, figure, kind = "steps of unknown lengths", "unsized", "unsized"


class OpenMp(Told):
    """PyTorch on two threads that wait for each other by running: openmp_loop.py."""

    name, figure = "PyTorch with active waiting", "openmp"

    def watched(self):
        return ["--", Torch.python, os.path.join(HERE, "openmp_loop.py"), self.folder]


class Service(Told):
    """A client of a service on its own machine: service.py."""

    name, figure = "client of a service", "service"

    def watched(self):
        return ["--", sys.executable, os.path.join(HERE, "service.py"), self.folder]

    def pid(self):
        with open(os.path.join(self.folder, "service.pid")) as file:
            return int(file.read())


class Walker(Told):
    """Look-ups in a table that fits into a cache: walker.c."""

    name, figure = "look-ups in a table", "walker"

    def __init__(self, folder, gpuwhy):
        super().__init__(folder, gpuwhy)
        self.walker, self.streamer = os.path.join(folder, "walker"), os.path.join(folder, "stream")
        self.compile("walker.c", self.walker)
        self.compile("stream.c", self.streamer)

    def watched(self):
        return ["--", self.walker, self.folder]


class Shards(Told):
    """A reader of a data set in shards, of which the first one is in memory: shards.py."""

    name, figure = "reader of shards", "shards"
    # As many can be read for the first time.
    NEW = 12

    def __init__(self, folder, gpuwhy):
        super().__init__(folder, gpuwhy)
        self.program = os.path.join(HERE, "shards.py")
        self.next = 1
        subprocess.run([sys.executable, self.program, "make", folder, str(self.NEW + 1)], check=True)

    def watched(self):
        return ["--", sys.executable, self.program, "read", self.folder]


class Steploop(Program):
    """Our own training loop, beside programs that are not ours."""

    name, figure = "steploop beside programs", "beside_programs"

    def __init__(self, folder, gpuwhy):
        self.gpuwhy, self.steps = gpuwhy, os.path.join(folder, "steps.csv")

    def watched(self):
        return ["--", self.gpuwhy, "steploop", "--csv", self.steps]


class Locked(Told):
    """A loop that shares a file with others: locked_loop.py."""

    name, figure = "loop with a locked file", "locked"

    def watched(self):
        return ["--", sys.executable, os.path.join(HERE, "locked_loop.py"), self.folder]


class FileServer:
    """A file system of somebody else's, a process in user space, mounted at FOLDER/files: files.py. With a link it asks a
    process at the other end of that whenever a file is read or written."""

    # The ends of the link, the namespace of the other one, and the address there.
    ENDS, SPACE, THERE = ("gpuwhyfs0", "gpuwhyfs1"), "gpuwhyfs", ("10.199.7.2", "7070")

    def __init__(self, folder, linked=False):
        self.does, self.mount = os.path.join(folder, "does"), os.path.join(folder, "files")
        os.makedirs(self.mount)
        self.told(0)
        # Debian's Python has the package.
        self.program = [Torch.python, os.path.join(HERE, "files.py")]
        self.linked, self.other = linked, None
        if linked:
            self.link()
        command = [*self.program, "serve", folder, *(self.THERE if linked else ())]
        self.child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.pid = self.child.pid

    def link(self):
        """Makes the link and the process at its other end."""
        ours, theirs = self.ENDS
        there = ["ip", "netns", "exec", self.SPACE]
        for command in (
            ["ip", "netns", "add", self.SPACE],
            ["ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.SPACE],
            ["ip", "address", "add", "10.199.7.1/24", "dev", ours],
            [*there, "ip", "address", "add", "10.199.7.2/24", "dev", theirs],
            [*there, "ip", "link", "set", theirs, "up"],
            ["ip", "link", "set", ours, "up"],
        ):
            subprocess.run(command, check=True)
        self.other = subprocess.Popen([*there, *self.program, "answer", *self.THERE])
        time.sleep(1)

    def is_up(self, up):
        subprocess.run(["ip", "link", "set", self.ENDS[0], "up" if up else "down"], check=True)

    def is_there(self):
        return os.path.ismount(self.mount)

    def told(self, what):
        """1 and 3: each read and write sleeps, 2: it computes."""
        with open(self.does, "r+b" if os.path.exists(self.does) else "wb") as file:
            file.write(bytes([what]))

    def end(self):
        subprocess.run(["umount", "--lazy", self.mount], check=False)
        for child in filter(None, (self.child, self.other)):
            child.kill()
            child.wait()
        if self.linked:
            subprocess.run(["ip", "link", "delete", self.ENDS[0]], check=False)
            subprocess.run(["ip", "netns", "delete", self.SPACE], check=False)


class Files(Told):
    """A reader of files that a process of somebody else serves: files.py."""

    name, figure = "reader of served files", "files"

    def __init__(self, folder, gpuwhy):
        super().__init__(folder, gpuwhy)
        self.server = FileServer(folder)
        self.wait_for(self.server.is_there)

    def watched(self):
        return ["--", sys.executable, os.path.join(HERE, "files.py"), "read", self.folder]

    def end(self):
        self.server.end()
