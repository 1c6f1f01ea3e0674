"""A client that asks a server at a rate and logs how long each answer took, and for how much of that the client itself
waited for a CPU: asks.py FOLDER KIND ADDRESS PER_SECOND.

KIND is redis, memcached, http, grpc, mariadb, etcd or dns; ADDRESS a Unix socket, `host:port/path` of http and etcd, or `host:port`
of dns and grpc.
"""

import os
import random
import socket
import sys
import time


def redis(address):
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)

    def ask():
        key = random.randrange(1000)
        which = random.random()
        if which < 0.5:
            server.sendall(f"GET k{key}\r\n".encode())
        elif which < 0.8:
            server.sendall(f"SET k{key} {'v' * 100}\r\n".encode())
        else:
            server.sendall(b"LRANGE list 0 99\r\n")
        answer = server.recv(1 << 16)
        while not answer.endswith(b"\r\n"):
            answer += server.recv(1 << 16)

    return ask


def memcached(address):
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)

    def ask():
        key = random.randrange(1000)
        if random.random() < 0.7:
            server.sendall(f"get k{key}\r\n".encode())
            ends = (b"END\r\n",)
        else:
            server.sendall(f"set k{key} 0 0 100\r\n{'v' * 100}\r\n".encode())
            ends = (b"STORED\r\n",)
        answer = server.recv(1 << 16)
        while not answer.endswith(ends):
            answer += server.recv(1 << 16)

    return ask


def http(address):
    import http.client

    place, path = address.split("/", 1)
    server = http.client.HTTPConnection(place)

    def ask():
        server.request("GET", "/" + path.replace("#", str(random.randrange(40))))
        server.getresponse().read()

    return ask


def etcd(address):
    import base64
    import http.client
    import json

    server = http.client.HTTPConnection(address.split("/", 1)[0])

    def ask():
        key, value = (base64.b64encode(word).decode() for word in (b"k%d" % random.randrange(100), b"v" * 200))
        server.request("POST", "/v3/kv/put", json.dumps({"key": key, "value": value}))
        server.getresponse().read()

    return ask


def grpc(address):
    import grpc

    lists = grpc.insecure_channel(address).unary_unary("/bench.Rows/List")
    return lambda: lists(b"")


def dns(address):
    import struct

    place, port = address.split(":")
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.connect((place, int(port)))

    def ask():
        name = b"host%d" % random.randrange(40)
        question = bytes([len(name)]) + name + b"\x05bench\x00" + struct.pack(">HH", 1, 1)
        server.send(struct.pack(">HHHHHH", random.randrange(65536), 0x0100, 1, 0, 0, 0) + question)
        server.recv(4096)

    return ask


def mariadb(address):
    import pymysql

    cursor = pymysql.connect(unix_socket=address, user="root", database="bench", autocommit=False).cursor()

    def ask():
        row = random.randrange(20)
        cursor.execute("BEGIN")
        cursor.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", (row,))
        cursor.execute("SELECT balance FROM accounts WHERE id = %s", (row,))
        cursor.fetchall()
        cursor.execute("COMMIT")

    return ask


def run_delay(schedstat):
    """For how long this thread has waited on run queues so far, ns (Documentation/scheduler/sched-stats.rst)."""
    return int(os.pread(schedstat.fileno(), 64, 0).split()[1])


def main(folder, kind, address, per_second):
    kinds = {"redis": redis, "memcached": memcached, "http": http, "grpc": grpc, "mariadb": mariadb, "etcd": etcd, "dns": dns}
    ask = kinds[kind](address)
    with open(os.path.join(folder, "steps"), "w", buffering=1) as log, open("/proc/thread-self/schedstat") as mine:
        while True:
            before = run_delay(mine)
            began = time.monotonic_ns()
            ask()
            took = time.monotonic_ns() - began
            log.write(f"{began} {took} {run_delay(mine) - before}\n")
            time.sleep(max(0.0, 1 / float(per_second) - took / 1e9))


main(*sys.argv[1:])
