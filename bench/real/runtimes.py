"""Servers on run times with threads of their own (Java, Go, Ruby, Python's workers), and a cache of many threads."""

import http.client
import os
import subprocess
import threading

from beside import pauses, short_processes, syncs
from servers import BUILD, CPU, HOGS, LOCK, MORE, PYTHON, QUIET, QUOTA, Server, again, taken_ports

JAVA = """
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.*;
import java.util.concurrent.Executors;

public class Service {
    static final Object books = new Object();
    static final List<Object> kept = new ArrayList<>();

    static void sleep(long ms) {
        try { Thread.sleep(ms); } catch (InterruptedException e) { }
    }

    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 18082), 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            String path = exchange.getRequestURI().getPath();
            StringBuilder rows = new StringBuilder();
            synchronized (books) {
                if (path.equals("/lock")) sleep(50);
                for (int i = 0; i < 2000; i++) rows.append("{id:").append(i).append("},");
            }
            if (path.equals("/garbage")) {
                synchronized (kept) {
                    for (int i = 0; i < 300000; i++) kept.add(new int[] { i, i });
                    if (kept.size() > 3000000) kept.clear();
                }
                System.gc();
            }
            byte[] answer = rows.toString().getBytes();
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
    }
}
"""

GO = """
package main

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

type row struct {
	Id   int
	Name string
}

func main() {
	var books sync.Mutex
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		books.Lock()
		if r.URL.Path == "/lock" {
			time.Sleep(50 * time.Millisecond)
		}
		rows := make([]row, 500)
		for i := range rows {
			rows[i] = row{i, "row"}
		}
		books.Unlock()
		if r.URL.Path == "/slow" {
			for until := time.Now().Add(20 * time.Millisecond); time.Now().Before(until); {
			}
		}
		json.NewEncoder(w).Encode(rows)
	})
	http.ListenAndServe("127.0.0.1:18082", nil)
}
"""

FLASK = """
import json, time
from flask import Flask

app = Flask(__name__)


@app.route("/<what>")
def answer(what):
    if what == "sleeps":
        time.sleep(0.05)
    if what == "slow":
        until = time.monotonic() + 0.03
        while time.monotonic() < until:
            pass
    return json.dumps([{"id": n} for n in range(1000)])
"""

GRPC = """
import json, threading, time
from concurrent import futures
import grpc

books = threading.Lock()


def lists(request, context):
    if request == b"sleeps":
        time.sleep(0.05)
    with books:
        if request == b"lock":
            time.sleep(0.05)
        return json.dumps([{"id": n} for n in range(1000)]).encode()


handler = grpc.unary_unary_rpc_method_handler(lists)
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Rows", {"List": handler})])
server.add_insecure_port("127.0.0.1:18082")
server.start()
server.wait_for_termination()
"""

# Another client of that, which asks for so long, by turns in so many threads.
ASKS_GRPC = """
import sys, threading, time
import grpc

until = time.monotonic() + float(sys.argv[2])
lists = grpc.insecure_channel("127.0.0.1:18082").unary_unary("/bench.Rows/List")


def asks():
    while time.monotonic() < until:
        lists(sys.argv[1].encode())
        time.sleep(0.02)


threads = [threading.Thread(target=asks) for _ in range(int(sys.argv[3]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

RUBY = """
require "json"
run lambda { |env|
  if env["PATH_INFO"] == "/slow"
    till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 0.1
    nil while Process.clock_gettime(Process::CLOCK_MONOTONIC) < till
  end
  [200, { "content-type" => "application/json" }, [JSON.generate((0...1000).map { |n| { id: n } })]]
}
"""


def page(path):
    client = http.client.HTTPConnection("127.0.0.1:18082")
    client.request("GET", path)
    client.getresponse().read()
    client.close()


def asked(path, pause, clients=1):
    """Other clients ask for another page: the server's own doing."""

    def disturb(program, seconds, rng):
        one = again(lambda _: page(path), pause)
        threads = [threading.Thread(target=one, args=(program, seconds, rng)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {program.pid, *program.others()}, set()

    return disturb


class Web(Server):
    """A service that answers with JSON."""

    rate = 120

    def answers(self):
        try:
            page("/")
        except (ConnectionError, http.client.HTTPException):
            return False
        return True

    def asked(self):
        return ["http", "127.0.0.1:18082/"]

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as out:
            out.write(text)
        return path


class Java(Web):
    name, figure = "Java", "java"

    def command(self):
        source = self.file("Service.java", JAVA)
        subprocess.run(["javac", source], check=True, **QUIET)
        return ["/usr/bin/java", "-Xmx512m", "-Dsun.net.httpserver.nodelay=true", "-cp", self.folder, "Service"]


class Go(Web):
    name, figure = "Go", "go"

    def command(self):
        source, program = self.file("service.go", GO), os.path.join(self.folder, "service")
        cache = {**os.environ, "GOCACHE": os.path.join(self.folder, "cache"), "GO111MODULE": "off"}
        subprocess.run(["go", "build", "-o", program, source], check=True, env=cache, **QUIET)
        return [program]


class Flask(Web):
    name, figure, rate = "Flask under gunicorn", "gunicorn", 80

    def command(self):
        self.file("service.py", FLASK)
        return ["/usr/bin/gunicorn", "--workers", "2", "--bind", "127.0.0.1:18082", "--chdir", self.folder, "service:app"]

    def asked(self):
        return ["http", "127.0.0.1:18082/usual"]


class Grpc(Web):
    """A service that is called by gRPC."""

    name, figure, rate = "gRPC in Python", "grpc", 80

    def command(self):
        return [PYTHON, self.file("service.py", GRPC)]

    def answers(self):
        return 18082 in taken_ports()

    def asked(self):
        return ["grpc", "127.0.0.1:18082"]


def called(request, clients):
    """Other clients of gRPC ask for something else."""

    def disturb(program, seconds, rng):
        subprocess.run([PYTHON, "-c", ASKS_GRPC, request, str(seconds), str(clients)], check=True, **QUIET)
        return {program.pid}, set()

    return disturb


class Puma(Web):
    name, figure, rate = "Ruby under puma", "puma", 80

    def command(self):
        source = self.file("config.ru", RUBY)
        return ["/usr/bin/puma", "--bind", "tcp://127.0.0.1:18082", "--threads", "4:4", "--environment", "none", source]


class Memcached(Server):
    """Look-ups and writes."""

    name, figure, rate = "memcached", "memcached", 400

    def command(self):
        return ["/usr/bin/memcached", "-u", "root", "-s", self.socket, "-t", "2", "-m", "256"]

    def asked(self):
        return ["memcached", self.socket]


# It sleeps with the lock: both are true.
HELD = {*LOCK, "own_sleep"}
PAUSED = ("it is stopped", pauses, {"collective_straggler"}, False)
SHORT = ("many short processes", short_processes, CPU, True)
# As in situations.py.
ALL = [
    (name, program, *rest)
    for program, of in (
        (Java, [HOGS, QUOTA, SHORT, ("a request holds a lock", asked("/lock", 0.05), HELD, False),
                ("it collects garbage", asked("/garbage", 0.1), {"gc_pause", *MORE}, False)]),
        (Go, [HOGS, QUOTA, BUILD,
              ("a request holds a lock", asked("/lock", 0.05), HELD, False)]),
        (Flask, [HOGS, SHORT, ("other answers take long", asked("/sleeps", 0.0, 2), {"own_sleep", "queueing"}, False),
                 ("other answers are computed for long", asked("/slow", 0.0, 2), MORE | CPU, False)]),
        (Grpc, [HOGS, QUOTA, ("a call holds a lock", called("lock", 1), HELD, False),
                ("all threads of the pool sleep", called("sleeps", 4), {"own_sleep", "queueing"}, False)]),
        (Puma, [HOGS, QUOTA, ("an answer is computed for long", asked("/slow", 0.05), {"gil_contention", *LOCK, *MORE}, False)]),
        (Memcached, [HOGS, QUOTA, PAUSED, ("a process that syncs", syncs, {None, "block_io", *CPU}, False)]),
    )
    for name, *rest in of
]
