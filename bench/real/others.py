"""More programs that nobody here wrote: of HPC, of pages with sessions, a proxy, a database in a library, an encoder."""

import glob
import http.client
import os
import signal
import subprocess
import threading
import time

from beside import beside, busy_loop, put, short_processes, syncs, told, until
from programs import Program, logged
from runtimes import PAUSED
from servers import BUILD, CPU, HOGS, LOCK, MORE, PYTHON, QUIET, QUOTA, Server


class Lines(Program):
    """A program that `watch` follows and whose lines of output say how far it is: the time between two is a unit."""

    allowed = None
    # A line that holds this ends a unit.
    holds = ""

    def __init__(self, folder, gpuwhy):
        os.chmod(folder, 0o755)
        self.folder, self.steps = folder, os.path.join(folder, "steps")
        self.child = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder,
            env={**os.environ, **self.environment()}, start_new_session=True,
        )
        threading.Thread(target=self.log, daemon=True).start()
        self.wait_for(lambda: os.path.exists(self.steps) and os.path.getsize(self.steps) > 0)
        self.pid = self.first()

    def environment(self):
        return {}

    def first(self):
        return self.child.pid

    def log(self):
        latest = None
        with open(self.steps, "w", buffering=1) as out:
            for line in self.child.stdout:
                text = line.decode(errors="replace")
                if self.holds not in text:
                    continue
                now = time.monotonic_ns()
                if latest:
                    out.write(f"{latest} {(now - latest) // max(1, self.units(text))}\n")
                latest = now

    def units(self, line):
        """How many units ended with a line."""
        return 1

    def watched(self):
        return ["-p", str(self.pid)]

    def took(self, begin, end):
        return logged(self.steps, begin, end)

    def end(self):
        subprocess.run(["kill", "-KILL", "--", f"-{self.child.pid}"], **QUIET)
        self.child.wait()


LJ = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 10
thermo_modify flush yes
run 100000000
"""


class Lammps(Lines):
    """Molecular dynamics on two ranks of MPI, which spin while they wait for each other."""

    name, figure, holds = "LAMMPS under MPI", "lammps", " "

    def command(self):
        put(os.path.join(self.folder, "in.lj"), LJ)
        return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "lmp", "-in", "in.lj"]

    def environment(self):
        return {"OMP_NUM_THREADS": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}

    def ranks(self):
        return sorted(self.others())

    def watched(self):
        return [word for pid in self.ranks() for word in ("-p", str(pid))]


class LammpsSteps(Lammps):
    """The same; a step is a computation of its forces."""

    name, figure = "LAMMPS by its steps", "lammps_steps"

    def watched(self):
        maps = open(f"/proc/{self.ranks()[0]}/maps").read().split()
        library = next(word for word in maps if "liblammps" in word)
        return [*super().watched(), "--step", f"uprobe:{library}:_ZN9LAMMPS_NS9PairLJCut7computeEii"]


def one_rank_is_stopped(program, seconds, rng):
    """The operator stops one rank now and then."""
    for _ in until(seconds):
        os.kill(program.ranks()[1], signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(program.ranks()[1], signal.SIGCONT)
        time.sleep(0.2)
    return {program.ranks()[1], os.getpid()}, set()


BACKEND = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answers(BaseHTTPRequestHandler):
    protocol_version, wbufsize, disable_nagle_algorithm = 'HTTP/1.1', 1 << 16, True
    def do_GET(self):
        does = open(sys.argv[2], 'rb').read(1)
        if does == b'1':
            time.sleep(0.02)
        elif does == b'2':
            sum(range(400_000))
        body = b'x' * 20000
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
    def log_message(self, *words):
        pass

ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Answers).serve_forever()
"""


class Front(Server):
    """What stands before a service, which is told what it does."""

    rate = 150

    def begin_backend(self, port):
        self.does = os.path.join(self.folder, "does")
        self.told(0)
        self.backend = subprocess.Popen([PYTHON, "-c", BACKEND, str(port), self.does], **QUIET)
        time.sleep(1)

    def told(self, what):
        with open(self.does, "wb") as out:
            out.write(str(what).encode())

    def answers(self):
        time.sleep(1)
        return True

    def end(self):
        super().end()
        self.backend.kill()
        self.backend.wait()


class Haproxy(Front):
    """A proxy before a service."""

    name, figure = "HAProxy", "haproxy"

    def command(self):
        self.begin_backend(18091)
        config = os.path.join(self.folder, "haproxy.cfg")
        put(config, """
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 50s
  timeout server 50s
frontend front
  bind 127.0.0.1:18090
  default_backend back
backend back
  server one 127.0.0.1:18091
""")
        return ["/usr/sbin/haproxy", "-f", config, "-db"]

    def asked(self):
        return ["http", "127.0.0.1:18090/"]


class Varnish(Front):
    """A cache of many threads before a service that says of each answer that it must not be kept."""

    name, figure = "Varnish", "varnish"

    def command(self):
        self.begin_backend(18097)
        config = os.path.join(self.folder, "pass.vcl")
        put(config, """
vcl 4.0;
backend default { .host = "127.0.0.1"; .port = "18097"; }
sub vcl_recv { return (pass); }
""")
        return ["/usr/sbin/varnishd", "-F", "-a", "127.0.0.1:18098", "-f", config, "-n", os.path.join(self.folder, "n"),
                "-j", "none", "-T", "none"]

    def asked(self):
        time.sleep(3)
        return ["http", "127.0.0.1:18098/"]


def backend_does(what):
    """The service behind the proxy does something with each request."""
    return told(what, lambda program: {program.backend.pid})


def php_fpm():
    return sorted(glob.glob("/usr/sbin/php-fpm*"))[-1]


PAGE = """<?php
session_save_path(__DIR__);
session_id("shared");
session_start();
$_SESSION['n'] = ($_SESSION['n'] ?? 0) + 1;
$s = 0;
for ($i = 0; $i < 40000; $i++) { $s += $i % 7; }
if (isset($_GET['slow'])) usleep(60000);
if (isset($_GET['more'])) for ($i = 0; $i < 800000; $i++) { $s += $i % 7; }
session_write_close();
echo json_encode(['s' => $s, 'n' => 1]);
"""


class Php(Server):
    """Pages with a session, which is a file that a page locks, behind nginx."""

    name, figure, rate = "PHP with sessions", "php", 100

    def command(self):
        put(os.path.join(self.folder, "page.php"), PAGE)
        self.sock = os.path.join(self.folder, "fpm.sock")
        put(os.path.join(self.folder, "fpm.conf"), f"""
[global]
error_log = {self.folder}/fpm.log
daemonize = no
[www]
listen = {self.sock}
user = root
group = root
pm = static
pm.max_children = 3
""")
        put(os.path.join(self.folder, "nginx.conf"), f"""
worker_processes 1; daemon off; pid {self.folder}/pid; error_log {self.folder}/error; user root;
events {{ }}
http {{ access_log off; server {{ listen 127.0.0.1:18095; root {self.folder};
location ~ \\.php$ {{ include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass unix:{self.sock}; }} }} }}
""")
        self.front = subprocess.Popen(["/usr/sbin/nginx", "-c", os.path.join(self.folder, "nginx.conf")], **QUIET)
        return [php_fpm(), "-R", "-F", "-y", os.path.join(self.folder, "fpm.conf")]

    def answers(self):
        return os.path.exists(self.sock)

    def asked(self):
        time.sleep(1)
        return ["http", "127.0.0.1:18095/page.php"]

    def end(self):
        super().end()
        self.front.terminate()
        self.front.wait()


def asks_for(path, pause):
    """Another client asks for a page again and again."""

    def disturb(program, seconds, rng):
        for _ in until(seconds):
            client = http.client.HTTPConnection("127.0.0.1:18095")
            client.request("GET", path)
            client.getresponse().read()
            client.close()
            time.sleep(pause)
        return {program.pid, *program.others()}, {os.path.basename(php_fpm())}

    return disturb


SQLITE = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
db.execute('PRAGMA journal_mode=WAL')
db.execute('CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, v INTEGER)')
for i in range(100):
    db.execute('INSERT OR IGNORE INTO t VALUES (?, 0)', (i,))
n = 0
while True:
    db.execute('BEGIN IMMEDIATE')
    for i in range(20):
        db.execute('UPDATE t SET v = v + 1 WHERE id = ?', ((n * 7 + i) % 100,))
    db.execute('COMMIT')
    n += 1
    print('done', flush=True)
    time.sleep(0.004)
"""

HOLDS_DB = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
while True:
    db.execute('BEGIN IMMEDIATE')
    db.execute('UPDATE t SET v = v + 1 WHERE id = 3')
    time.sleep(0.15)
    db.execute('COMMIT')
    time.sleep(0.1)
"""


class Sqlite(Lines):
    """Transactions in a database that is a library."""

    name, figure, holds = "SQLite", "sqlite", "done"

    def command(self):
        return [PYTHON, "-c", SQLITE, os.path.join(self.folder, "db")]


def holds_db(program, seconds, rng):
    """Another process holds the database's lock."""
    return beside(seconds, [PYTHON, "-c", HOLDS_DB, os.path.join(program.folder, "db")])


class Ffmpeg(Lines):
    """An encoder of several threads."""

    name, figure, holds = "ffmpeg", "ffmpeg", "frame="

    def command(self):
        how = "-nostdin -loglevel error -stats_period 0.1 -progress - -f lavfi -i testsrc2=size=640x360:rate=1000 -c:v libx264 -preset veryfast -threads 2 -f null -"
        return ["ffmpeg", *how.split()]

    def units(self, line):
        frames, self.frames = getattr(self, "frames", 0), int(line.split("=")[1])
        return self.frames - frames


FITS = """
import numpy, time
from sklearn.cluster import KMeans
rng = numpy.random.default_rng(1)
data = rng.normal(size=(20000, 20)).astype('float32')
while True:
    KMeans(n_clusters=8, n_init=1, max_iter=10, tol=0, random_state=1).fit(data)
    print('done', flush=True)
"""


class Sklearn(Lines):
    """A loop of fits, each by two threads of OpenMP."""

    name, figure, holds = "scikit-learn", "sklearn", "done"

    def command(self):
        return [PYTHON, "-c", FITS]

    def environment(self):
        return {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}


class Apache(Server):
    """Files by processes that each have many threads."""

    name, figure, rate = "Apache", "apache", 150

    def command(self):
        with open(os.path.join(self.folder, "page"), "wb") as out:
            out.write(os.urandom(200_000))
        config = os.path.join(self.folder, "apache.conf")
        put(config, f"""
ServerRoot {self.folder}
ServerName localhost
PidFile {self.folder}/pid
ErrorLog {self.folder}/error
DefaultRuntimeDir {self.folder}
Listen 127.0.0.1:18094
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule deflate_module /usr/lib/apache2/modules/mod_deflate.so
LoadModule filter_module /usr/lib/apache2/modules/mod_filter.so
SetOutputFilter DEFLATE
MaxKeepAliveRequests 0
User nobody
Group nogroup
DocumentRoot {self.folder}
""")
        return ["/usr/sbin/apache2", "-f", config, "-DFOREGROUND"]

    def answers(self):
        return os.path.exists(os.path.join(self.folder, "pid"))

    def asked(self):
        time.sleep(1)
        return ["http", "127.0.0.1:18094/page"]


class Erlang(Server):
    """Files by a runtime that has a scheduler of its own on each CPU, and processes that wander between them."""

    name, figure, rate = "Erlang", "erlang", 150

    def command(self):
        with open(os.path.join(self.folder, "page"), "wb") as out:
            out.write(b"x" * 100_000)
        how = f'{{port,18096}},{{server_name,"bench"}},{{bind_address,{{127,0,0,1}}}},{{server_root,"{self.folder}"}},{{document_root,"{self.folder}"}}'
        return ["/usr/bin/erl", "-noinput", "-eval", f"inets:start(), {{ok,_}} = inets:start(httpd,[{how}])."]

    def answers(self):
        return can_ask(18096, "/page")

    def asked(self):
        return ["http", "127.0.0.1:18096/page"]


def can_ask(port, path):
    """Whether somebody answers there."""
    try:
        client = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=5)
        client.request("GET", path)
        client.getresponse().read()
        return True
    except OSError:
        return False


class Etcd(Server):
    """Writes to a store that has each on the disk before it answers; in Go."""

    name, figure, rate = "etcd", "etcd", 60

    def command(self):
        urls = "--listen-client-urls http://127.0.0.1:18079 --advertise-client-urls http://127.0.0.1:18079"
        peers = "--listen-peer-urls http://127.0.0.1:18080 --initial-advertise-peer-urls http://127.0.0.1:18080"
        cluster = "--initial-cluster default=http://127.0.0.1:18080"
        return ["/usr/bin/etcd", "--data-dir", os.path.join(self.folder, "data"), *urls.split(), *peers.split(), *cluster.split()]

    def answers(self):
        return can_ask(18079, "/health")

    def asked(self):
        return ["etcd", "127.0.0.1:18079/"]


class Unbound(Server):
    """Answers to questions for names, by UDP."""

    name, figure, rate = "Unbound", "unbound", 300

    def command(self):
        config = os.path.join(self.folder, "unbound.conf")
        names = "\n".join(f'  local-data: "host{n}.bench. IN A 10.0.0.{n}"' for n in range(40))
        put(config, f"""
server:
  interface: 127.0.0.1
  port: 18053
  username: ""
  chroot: ""
  pidfile: ""
  directory: "{self.folder}"
  use-syslog: no
  logfile: "{self.folder}/log"
  log-queries: yes
  do-daemonize: no
  local-zone: "bench." static
{names}
""")
        return ["/usr/sbin/unbound", "-d", "-c", config]

    def answers(self):
        time.sleep(2)
        return True

    def asked(self):
        return ["dns", "127.0.0.1:18053"]


class Gromacs(Lines):
    """Molecular dynamics of water by two threads, which spin while they wait for each other."""

    name, figure, holds = "GROMACS", "gromacs", "step"

    def command(self):
        top = '#include "oplsaa.ff/forcefield.itp"\n#include "oplsaa.ff/spc.itp"\n[ system ]\nwater\n[ molecules ]\n'
        mdp = "integrator = md\nnsteps = 100000000\nnstlog = 0\nnstenergy = 0\ncoulombtype = PME\ntcoupl = v-rescale\n"
        mdp += "tc-grps = system\ntau_t = 0.1\nref_t = 300\ngen_vel = yes\n"
        put(os.path.join(self.folder, "topol.top"), top)
        put(os.path.join(self.folder, "md.mdp"), mdp)
        make = "gmx solvate -cs spc216 -box 3 3 3 -o conf.gro -p topol.top && gmx grompp -f md.mdp -c conf.gro -p topol.top -o md.tpr -maxwarn 5"
        subprocess.run(["bash", "-c", make], cwd=self.folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return ["bash", "-c", "exec gmx mdrun -s md.tpr -ntmpi 1 -ntomp 2 -pin off -v -stepout 10 2>&1 | stdbuf -oL tr '\\r' '\\n'"]

    def first(self):
        found = subprocess.run(["pgrep", "-P", str(self.child.pid), "gmx"], capture_output=True, text=True)
        return int(found.stdout.split()[0])

    def units(self, line):
        return 10


ONE = ("one busy loop", busy_loop, CPU, True)
ALL = [
    (name, program, *rest)
    for program, of in (
        (Lammps, [ONE, QUOTA, ("a rank is stopped", one_rank_is_stopped, {"collective_straggler"}, False)]),
        (LammpsSteps, [ONE, QUOTA, BUILD]),
        (Haproxy, [HOGS, QUOTA, ("the service sleeps", backend_does(1), {"own_sleep"}, True),
                   ("the service computes more", backend_does(2), MORE | CPU, True)]),
        (Php, [HOGS, ("another page holds the session", asks_for("/page.php?slow", 0.05), LOCK | {"own_sleep"}, False),
               ("other pages compute more", asks_for("/page.php?more", 0.03), MORE | LOCK, False)]),
        (Sqlite, [HOGS, ("another process holds the database", holds_db, LOCK, False),
                  ("a process that syncs", syncs, {"block_io", *CPU}, True)]),
        (Ffmpeg, [HOGS, QUOTA]),
        (Sklearn, [ONE, QUOTA, ("many short processes", short_processes, CPU, True)]),
        (Apache, [HOGS, QUOTA, ("many short processes", short_processes, CPU, True)]),
        (Varnish, [HOGS, ("the service sleeps", backend_does(1), {"own_sleep"}, True),
                   ("the service computes more", backend_does(2), MORE | CPU, True)]),
        (Erlang, [HOGS, QUOTA, PAUSED]),
        (Etcd, [HOGS, QUOTA, ("a process that syncs", syncs, {"block_io", *CPU}, True)]),
        (Unbound, [HOGS, QUOTA, BUILD]),
        (Gromacs, [ONE, QUOTA, BUILD]),
    )
    for name, *rest in of
]
