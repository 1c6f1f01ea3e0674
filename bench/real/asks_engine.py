"""Asks an engine for completions at a steady rate: asks_engine.py FOLDER PORT PER_SECOND [WORD=NUMBER...].

tokens=N: so many in each prompt; answers=N: so many in each answer; prompts=N: only so many different prompts;
penalties=1: tokens that were used already are less likely. FOLDER/steps gets a line for each token: when the one before
came, or it was asked for, and how long it took, in ns.
"""

import http.client
import json
import os
import random
import sys
import threading
import time

folder, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
how = dict(word.split("=") for word in sys.argv[4:])
tokens, answers, prompts = (int(how.get(word, 0)) for word in ("tokens", "answers", "prompts"))
log = open(os.path.join(folder, "steps"), "w", buffering=1) if os.path.isdir(folder) else open(os.devnull, "w")
lock = threading.Lock()


def ask(dice):
    prompt = [dice.randrange(3, 259) for _ in range(tokens or min(900, int(16 + dice.expovariate(1 / 120))))]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": answers or dice.randrange(8, 33), "ignore_eos": True}
    body.update(temperature=0.8, stream=True)
    if how.get("penalties"):
        body.update(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1)
    last = time.monotonic_ns()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            now = time.monotonic_ns()
            with lock:
                log.write(f"{last} {now - last}\n")
            last = now


def work(dice):
    try:
        ask(dice)
    except OSError:
        pass


due = time.monotonic()
for number in range(10**9):
    time.sleep(max(0.0, due - time.monotonic()))
    due += random.expovariate(rate)
    if threading.active_count() < 32:
        threading.Thread(target=work, args=(random.Random(number % prompts if prompts else number),), daemon=True).start()
