"""Clients of an engine that each ask again when they have their answer: llm_client.py FOLDER PORT CLIENTS [PROMPT ANSWER],
the last two in tokens.

FOLDER/answers gets a line an answer: when it was asked for, when its first and its last token came (monotonic ns), and how
many tokens there were; several may have come in one piece.
"""

import http.client
import json
import os
import random
import sys
import threading
import time

folder, port, clients = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lock, log = threading.Lock(), open(os.path.join(folder, "answers"), "w", buffering=1)
# Tokens of a prompt and of an answer, so that every answer has as many intervals between tokens.
PROMPT, ANSWER = map(int, sys.argv[4:6] or (64, 32))


def ask(dice):
    prompt = [dice.randrange(3, 259) for _ in range(PROMPT)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0.8, "stream": True}
    asked, came = time.monotonic_ns(), []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            came.append(time.monotonic_ns())
    connection.close()
    if came:
        with lock:
            log.write(f"{asked} {came[0]} {came[-1]} {ANSWER}\n")


def work(number):
    dice = random.Random(number)
    while True:
        try:
            ask(dice)
        except OSError:
            time.sleep(0.1)


for number in range(clients):
    threading.Thread(target=work, args=(number,), daemon=True).start()
threading.Event().wait()
