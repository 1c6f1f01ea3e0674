"""A client that asks a server at a rate and logs how long each answer took: asks.py FOLDER KIND ADDRESS PER_SECOND.

KIND is redis, memcached, http or mariadb; ADDRESS a Unix socket, or `host:port/path` of http.
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


def main(folder, kind, address, per_second):
    ask = {"redis": redis, "memcached": memcached, "http": http, "mariadb": mariadb}[kind](address)
    with open(os.path.join(folder, "steps"), "w", buffering=1) as log:
        while True:
            began = time.monotonic_ns()
            ask()
            took = time.monotonic_ns() - began
            log.write(f"{began} {took}\n")
            time.sleep(max(0.0, 1 / float(per_second) - took / 1e9))


main(*sys.argv[1:])
