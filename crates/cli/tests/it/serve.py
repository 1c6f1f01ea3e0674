"""Starts a real `vllm serve`, sends it requests, and stops it: serve.py MODEL REQUESTS [OPTION…]

Prints `client NAME TTFT_NS TOKENS` for each request. The model has random weights and a tokenizer of bytes.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

model, count, options = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
port = 8123 + os.getpid() % 800
environment = {
    **os.environ,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.path.dirname(os.path.abspath(__file__))])),
}
program = os.path.join(os.path.dirname(sys.executable), "vllm")
server = subprocess.Popen(
    [sys.executable, program, "serve", model, "--served-model-name", "tiny"]
    + ["--load-format", "dummy", "--host", "127.0.0.1", "--port", str(port)]
    + ["--max-model-len", "2048", "--max-num-seqs", "32", "--dtype", "bfloat16"]
    + ["--enforce-eager", *options],
    env=environment,
    stdout=sys.stderr,
    start_new_session=True,
)


def is_up():
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def ask(n, dice):
    prompt = [dice.randrange(3, 259) for _ in range(min(900, int(16 + dice.expovariate(1 / 120))))]
    if n % 3 == 0:
        prompt = [40 + i % 7 for i in range(300)]  # one that a cache will have
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8 + n % 24, "ignore_eos": True}
    body.update(temperature=0.8, stream=True, stream_options={"include_usage": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    began, first, tokens, name = time.monotonic_ns(), None, 0, "?"
    headers = {"Content-Type": "application/json", "X-Request-Id": f"test-{n}"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        answer = json.loads(line[6:])
        name = answer["id"]
        if answer["choices"] and first is None:
            first = time.monotonic_ns()
        if answer.get("usage"):
            tokens = answer["usage"]["completion_tokens"]
    # In one piece: threads print at the same time.
    sys.stdout.write(f"client {name} {(first or 0) - began} {tokens}\n")
    sys.stdout.flush()


def work(numbers):
    for n in numbers:
        ask(n, random.Random(n))


try:
    while not is_up():
        if server.poll() is not None:
            sys.exit(f"vllm ended with {server.returncode}")
        time.sleep(1)
    threads = [threading.Thread(target=work, args=(range(i, count, 6),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(1)
finally:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
