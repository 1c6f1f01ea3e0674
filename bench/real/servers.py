"""Servers that nobody here wrote, each under a client of a steady rate (asks.py), and what is done to them."""

import http.client
import os
import re
import subprocess
import time

from beside import ask, busy_loops, compiler, put, quota, short_processes, syncs, until
from programs import HERE, Program, logged

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
# Debian's own, which has the packages.
PYTHON = "/usr/bin/python3"


def taken_ports():
    """The ports of this host at which somebody listens, or receives datagrams."""
    ports = set()
    for kind, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07")):
        with open(f"/proc/net/{kind}") as file:
            rows = [line.split() for line in list(file)[1:]]
        ports |= {int(row[1].split(":")[1], 16) for row in rows if row[3] == state}
    return ports


class Server(Program):
    """A server that runs before it is watched, and its client."""

    rate = 300
    # Of a CPU, under a quota: half of what it takes.
    allowed = None

    def __init__(self, folder, gpuwhy):
        os.chmod(folder, 0o755)
        self.folder, self.steps = folder, os.path.join(folder, "steps")
        self.socket = os.path.join(folder, "socket")
        taken = taken_ports()
        self.server = subprocess.Popen(self.command(), **QUIET)
        self.wait_for(self.answers)
        self.pid = self.server.pid
        self.prepare()
        asked = self.asked()
        port = re.search(r":(\d+)", asked[1])
        if port and int(port[1]) in taken:
            self.server.kill()
            raise RuntimeError(f"{self.name} cannot be asked: port {port[1]} is another one's, that an earlier run may have left")
        self.client = subprocess.Popen(
            [PYTHON, os.path.join(HERE, "asks.py"), folder, *asked, str(self.rate)], stdout=subprocess.DEVNULL
        )
        self.wait_for(lambda: os.path.exists(self.steps) and os.path.getsize(self.steps) > 0)

    def answers(self):
        return os.path.exists(self.socket)

    def prepare(self):
        """What is there before the first client."""

    def watched(self):
        return ["-p", str(self.pid)]

    def took(self, begin, end):
        return logged(self.steps, begin, end)

    def end(self):
        # While the first process lives it starts them again, and they hold its port when it is gone.
        others = self.others()
        for one in (self.client, self.server):
            one.kill()
            one.wait()
        for pid in others:
            subprocess.run(["kill", "-KILL", str(pid)], **QUIET)


class Redis(Server):
    """Look-ups, writes and short lists; a step is a command that is carried out."""

    name, figure = "Redis", "redis"

    def command(self):
        how = "--port 0 --daemonize no --appendonly yes --appendfsync always --dir"
        return ["/usr/bin/redis-server", *how.split(), self.folder, "--unixsocket", self.socket, "--save", "",
                "--enable-debug-command", "yes"]

    def cli(self, *words, **how):
        return subprocess.run(["redis-cli", "-s", self.socket, *words], stdout=subprocess.DEVNULL, **how)

    def prepare(self):
        self.cli("RPUSH", "list", *map(str, range(100)))
        self.cli("DEBUG", "POPULATE", "200000", "key", "200")

    def asked(self):
        return ["redis", self.socket]


class RedisSteps(Redis):
    name, figure = "Redis by its commands", "redis_steps"

    def watched(self):
        return [*super().watched(), "--step", "uprobe:/usr/bin/redis-check-rdb:call"]


class MariaDb(Server):
    """Short transactions on few rows; a step is a statement."""

    name, figure, rate = "MariaDB", "mariadb", 100

    def command(self):
        data = os.path.join(self.folder, "data")
        subprocess.run(["mariadb-install-db", f"--datadir={data}", "--user=root"], check=True, **QUIET)
        return ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={self.socket}", "--user=root",
                "--skip-networking", "--innodb-flush-log-at-trx-commit=1"]

    def session(self):
        return subprocess.Popen(
            ["mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "--batch", "--skip-column-names", "--unbuffered"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )

    def prepare(self):
        with self.session() as session:
            session.stdin.write(
                "CREATE DATABASE bench; USE bench; CREATE TABLE accounts (id INT PRIMARY KEY, balance INT) ENGINE=InnoDB;"
                + "".join(f"INSERT INTO accounts VALUES ({row}, 0);" for row in range(20)) + "\n"
            )
            session.stdin.close()

    def asked(self):
        return ["mariadb", self.socket]

    def watched(self):
        return [*super().watched(), "--step", "uprobe:/usr/sbin/mariadbd:dispatch_command"]


class MariaDbRounds(MariaDb):
    name, figure = "MariaDB without steps", "mariadb_rounds"

    def watched(self):
        return Server.watched(self)


class Nginx(Server):
    """Files of half a MiB, some of which are in memory."""

    name, figure = "nginx", "nginx"
    rate = 150

    def command(self):
        for number in range(40):
            with open(os.path.join(self.folder, f"file{number}"), "wb") as out:
                out.write(os.urandom(512 << 10))
        config = os.path.join(self.folder, "nginx.conf")
        with open(config, "w") as out:
            out.write(f"""
worker_processes 1; daemon off; pid {self.folder}/pid; error_log {self.folder}/error; user root;
events {{ }}
http {{ access_log off; server {{ listen 127.0.0.1:18080; root {self.folder}; gzip on; gzip_types *; gzip_comp_level 1; }} }}
""")
        return ["/usr/sbin/nginx", "-c", config]

    def answers(self):
        return os.path.exists(os.path.join(self.folder, "pid")) and os.path.getsize(os.path.join(self.folder, "pid"))

    def asked(self):
        return ["http", "127.0.0.1:18080/file#"]


NODE = """
const http = require('http');
const cache = new Map();
http.createServer((request, response) => {
  if (request.url.startsWith('/slow')) {
    const until = Date.now() + 20;
    while (Date.now() < until);
  }
  if (request.url.startsWith('/garbage')) {
    for (let i = 0; i < 200000; i++) cache.set(Math.random(), { a: [1, 2, 3], b: 'x' + i });
    if (cache.size > 2000000) cache.clear();
  }
  const rows = [];
  for (let i = 0; i < 3000; i++) rows.push({ id: i, name: 'row ' + i });
  response.end(JSON.stringify(rows));
}).listen(18081, '127.0.0.1', () => console.log('ready'));
"""


class Node(Server):
    """A service that answers with JSON."""

    name, figure = "node", "node"
    rate = 150

    def command(self):
        path = os.path.join(self.folder, "service.js")
        with open(path, "w") as out:
            out.write(NODE)
        return ["/usr/bin/node", path]

    def answers(self):
        try:
            a_page("/")(self)
        except ConnectionError:
            return False
        return True

    def asked(self):
        return ["http", "127.0.0.1:18081/"]


def again(what, pause):
    """A client of the server asks for something again and again: the server's own doing."""

    def disturb(program, seconds, rng):
        for _ in until(seconds):
            what(program)
            time.sleep(pause)
        return {program.pid}, set()

    return disturb


def a_page(path):
    def get(program):
        client = http.client.HTTPConnection("127.0.0.1:18081")
        client.request("GET", path)
        client.getresponse().read()
        client.close()

    return get


def holds(begin, end):
    """Another session of MariaDB holds a lock 200 ms at a time."""

    def disturb(program, seconds, rng):
        session = program.session()
        ask(session, "USE bench;")
        for _ in until(seconds):
            ask(session, begin)
            time.sleep(0.2)
            ask(session, end)
            time.sleep(0.1)
        session.stdin.close()
        session.wait()
        # A thread of the server.
        return {program.pid}, set()

    return disturb


def drops_caches(program, seconds, rng):
    """The operator empties the page cache again and again, which also takes a CPU."""
    for _ in until(seconds):
        put("/proc/sys/vm/drop_caches", 1)
        time.sleep(0.1)
    return {os.getpid()}, set()


CPU, LOCK, MORE = {"cpu_contention"}, {"lock_contention"}, {"engine_software"}
HOGS = ("two busy loops", busy_loops, CPU, True)
BUILD = ("a compiler", compiler, CPU, True)
QUOTA = ("a quota", quota, {"cpu_throttling"}, False)
OF_REDIS = [
    HOGS,
    QUOTA,
    ("a process that syncs", syncs, {"block_io", *CPU}, True),
    ("it sleeps", again(lambda redis: redis.cli("DEBUG", "SLEEP", "0.03"), 0.03), {"own_sleep"}, False),
    ("it looks through all keys", again(lambda redis: redis.cli("KEYS", "*zz*"), 0.02), MORE, False),
]
OF_MARIADB = [
    HOGS,
    ("a process that syncs", syncs, {"block_io", *CPU}, True),
    ("row locks", holds("BEGIN; UPDATE accounts SET balance = balance WHERE id < 20;", "COMMIT;"), LOCK, False),
    ("all tables are locked", holds("FLUSH TABLES WITH READ LOCK;", "UNLOCK TABLES;"), LOCK, False),
]
# As in situations.py.
ALL = [
    (name, program, *rest)
    for program, of in (
        (Redis, OF_REDIS),
        (RedisSteps, OF_REDIS),
        (MariaDb, [*OF_MARIADB, QUOTA]),
        (MariaDbRounds, OF_MARIADB),
        (Nginx, [HOGS, QUOTA, BUILD,
                 ("the page cache is emptied", drops_caches, {"block_io", "input_load", "memory_pressure", *CPU}, False)]),
        (Node, [HOGS, QUOTA, ("many short processes", short_processes, CPU, True),
                ("some answers take long", again(a_page("/slow"), 0.03), MORE, False),
                ("it makes garbage", again(a_page("/garbage"), 0.03), {"gc_pause", *MORE}, False)]),
    )
    for name, *rest in of
]
