"""Programs that the judge met only after it was written: training on CPUs, an engine for language models, asynchronous
Python, tasks of Ray, a proxy, name servers, a directory, a store of time series."""

import os
import subprocess
import sys
import time

from beside import put
from others import ONE, Front, Lines, backend_does, can_ask
from runtimes import PAUSED, SHORT
from servers import BUILD, CPU, HOGS, MORE, QUIET, QUOTA, Server, again

# Of `scripts/programs-env.sh`.
CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
PYTHON = os.environ.get("PROGRAMS_PYTHON", os.path.join(CACHE, "gpuwhy/programs/bin/python"))

BOOSTS = """
import numpy, xgboost
rng = numpy.random.default_rng(1)
x = rng.normal(size=(20000, 20)).astype('float32')
y = (x[:, 0] + x[:, 1] ** 2 > 1).astype('float32')
data = xgboost.DMatrix(x, y)
class Told(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, log):
        print('round', flush=True)
        return False
while True:
    xgboost.train({'tree_method': 'hist', 'nthread': 2, 'max_depth': 6}, data, 200, callbacks=[Told()])
"""

JAX = """
import jax, jax.numpy as jnp
key = jax.random.PRNGKey(0)
sizes = [256, 512, 512, 10]
params = [jax.random.normal(key, (a, b)) / a ** 0.5 for a, b in zip(sizes, sizes[1:])]
def loss(params, x, y):
    for w in params[:-1]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x @ params[-1] - y) ** 2)
@jax.jit
def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return [p - 1e-3 * g for p, g in zip(params, grads)], value
while True:
    key, a, b = jax.random.split(key, 3)
    x, y = jax.random.normal(a, (256, 256)), jax.random.normal(b, (256, 10))
    params, value = step(params, x, y)
    print('step', float(value), flush=True)
"""

LLAMA = """
import sys
import numpy
from gguf import GGUFWriter
from llama_cpp import Llama
path, layers, width, heads, inner, words = sys.argv[1], 8, 512, 8, 1408, 259
rng = numpy.random.default_rng(1)
writer = GGUFWriter(path, 'llama')
writer.add_context_length(512); writer.add_embedding_length(width); writer.add_block_count(layers)
writer.add_feed_forward_length(inner); writer.add_head_count(heads); writer.add_head_count_kv(heads)
writer.add_layer_norm_rms_eps(1e-5); writer.add_rope_dimension_count(width // heads); writer.add_vocab_size(words)
writer.add_tokenizer_model('llama')
writer.add_token_list(['<unk>', '<s>', '</s>'] + [f'<0x{n:02X}>' for n in range(256)])
writer.add_token_scores([0.0] * words)
writer.add_token_types([2, 3, 3] + [6] * 256)
writer.add_bos_token_id(1); writer.add_eos_token_id(2)
def tensor(name, *shape):
    writer.add_tensor(name, (rng.normal(size=shape) * 0.02).astype('float32'))
tensor('token_embd.weight', words, width); tensor('output.weight', words, width); tensor('output_norm.weight', width)
for n in range(layers):
    at = f'blk.{n}.'
    for name in ('attn_norm', 'ffn_norm'):
        tensor(f'{at}{name}.weight', width)
    for name in ('attn_q', 'attn_k', 'attn_v', 'attn_output'):
        tensor(f'{at}{name}.weight', width, width)
    for name in ('ffn_gate', 'ffn_up'):
        tensor(f'{at}{name}.weight', inner, width)
    tensor(f'{at}ffn_down.weight', width, inner)
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
model = Llama(path, n_ctx=512, n_threads=2, verbose=False)
while True:
    model.reset()
    model.eval([1])
    for n in range(400):
        model.eval([3 + n % 256])
        print('token', flush=True)
"""

ASYNC = """
import asyncio, json, time
import uvicorn
from fastapi import FastAPI
app = FastAPI()

@app.get('/')
async def answer():
    await asyncio.sleep(0)
    return [{'id': n, 'name': f'name {n}'} for n in range(200)]

@app.get('/blocks')
async def blocks():
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        json.dumps(list(range(1000)))
    return 'done'

@app.get('/sleeps')
async def sleeps():
    time.sleep(0.05)
    return 'done'

uvicorn.run(app, host='127.0.0.1', port=18110, log_level='error')
"""

RAY = """
import time
import ray
ray.init(num_cpus=2, include_dashboard=False, logging_level='error', _temp_dir='/tmp/gpuwhy-ray')

@ray.remote
class Worker:
    def work(self, n):
        return sum(i * i for i in range(n))

workers = [Worker.remote() for _ in range(2)]
while True:
    ray.get([one.work.remote(60000) for one in workers])
    print('step', flush=True)
    time.sleep(0.005)
"""


class Trains(Lines):
    """A program of the environment."""

    def command(self):
        return [PYTHON, "-c", self.text, os.path.join(self.folder, "model.gguf")]

    def environment(self):
        return {"OMP_NUM_THREADS": "2"}


class XgBoost(Trains):
    """Gradient boosting by two threads of OpenMP; a unit is a round."""

    name, figure, holds, text = "XGBoost", "xgboost", "round", BOOSTS
    module = "xgboost"


class Jax(Trains):
    """A training loop that was compiled by XLA, with its pool of threads."""

    name, figure, holds, text = "JAX", "jax", "step", JAX
    module = "jax"


class Llama(Trains):
    """llama.cpp, a token at a time, by two threads that spin while they wait for each other; random weights."""

    name, figure, holds, text = "llama.cpp", "llama_cpp", "token", LLAMA
    module = "llama_cpp"


class Ray(Trains):
    """A driver that gives tasks to two actors, each in a process of its own, and waits for both."""

    name, figure, holds, text = "Ray", "ray", "step", RAY
    module = "ray"

    def end(self):
        super().end()
        subprocess.run(["pkill", "-KILL", "-f", "gpuwhy-ray|raylet|ray::|gcs_server"], **QUIET)


class Uvicorn(Server):
    """FastAPI: one thread, an event loop of Python."""

    name, figure, rate = "FastAPI under uvicorn", "uvicorn", 100
    module = "uvicorn"

    def command(self):
        return [PYTHON, "-c", ASYNC]

    def answers(self):
        return can_ask(18110, "/")

    def asked(self):
        return ["http", "127.0.0.1:18110/"]


def page(path):
    return lambda program: can_ask(18110, path)


class Squid(Front):
    """A proxy before a service, that keeps nothing."""

    name, figure = "Squid", "squid"

    def command(self):
        self.begin_backend(18112)
        # It gives up being root.
        os.chmod(self.folder, 0o777)
        config = os.path.join(self.folder, "squid.conf")
        put(config, f"""
http_port 127.0.0.1:18111 accel defaultsite=127.0.0.1 no-vhost
cache_peer 127.0.0.1 parent 18112 0 no-query originserver
http_access allow all
cache deny all
memory_cache_shared off
access_log none
cache_log {self.folder}/log
pid_filename {self.folder}/pid
coredump_dir {self.folder}
shutdown_lifetime 0 seconds
""")
        return ["/usr/sbin/squid", "-N", "-f", config]

    def answers(self):
        return can_ask(18111, "/")

    def asked(self):
        return ["http", "127.0.0.1:18111/"]


class Bind(Server):
    """Answers to questions for names, by UDP, by libuv's loops."""

    name, figure, rate = "BIND", "bind", 300

    def command(self):
        config, zone = (os.path.join(self.folder, name) for name in ("named.conf", "zone"))
        names = "\n".join(f"host{n} A 10.0.0.{n}" for n in range(40))
        put(zone, f"$TTL 60\n@ SOA ns.bench. root.bench. 1 60 60 60 60\n@ NS ns.bench.\nns A 127.0.0.1\n{names}\n")
        put(config, f"""
options {{ directory "{self.folder}"; pid-file "{self.folder}/pid"; session-keyfile "{self.folder}/key";
  listen-on port 18113 {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no; querylog yes; dnssec-validation no; }};
controls {{ }};
zone "bench" {{ type primary; file "{zone}"; }};
""")
        return ["/usr/sbin/named", "-g", "-c", config]

    def answers(self):
        time.sleep(2)
        return True

    def asked(self):
        return ["dns", "127.0.0.1:18113"]


class Prometheus(Server):
    """Queries over time series; in Go."""

    name, figure, rate = "Prometheus", "prometheus", 60

    def command(self):
        config = os.path.join(self.folder, "prometheus.yml")
        put(config, "scrape_configs:\n- job_name: self\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['127.0.0.1:18114']\n")
        return ["/usr/bin/prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder}/data",
                "--web.listen-address=127.0.0.1:18114"]

    def answers(self):
        return can_ask(18114, "/-/ready")

    def asked(self):
        time.sleep(3)
        return ["http", "127.0.0.1:18114/api/v1/query?query=sum(rate(prometheus_http_requests_total%5B1m%5D))"]


def has(module):
    """Whether the environment has it."""
    if not os.path.exists(PYTHON):
        return False
    found = subprocess.run([PYTHON, "-c", f"import importlib.util as u; exit(u.find_spec('{module}') is None)"], **QUIET)
    return found.returncode == 0


def installed(programs):
    """The situations of programs, but of those whose module the environment lacks."""
    for program, of in programs:
        module = getattr(program, "module", None)
        if module and not has(module):
            print(f"{program.name} is left out: {PYTHON} has no {module} (make programs-env)", file=sys.stderr)
            continue
        for name, *rest in of:
            yield name, program, *rest


ALL = list(installed([
    (XgBoost, [ONE, QUOTA, SHORT]),
    (Jax, [ONE, QUOTA, BUILD]),
    (Llama, [ONE, QUOTA, PAUSED]),
    (Ray, [HOGS, QUOTA]),
    (Uvicorn, [HOGS, QUOTA, ("an answer blocks the loop", again(page("/blocks"), 0.05), MORE, False),
               ("an answer sleeps in the loop", again(page("/sleeps"), 0.05), {"own_sleep"}, False)]),
    (Squid, [HOGS, QUOTA, ("the service sleeps", backend_does(1), {"own_sleep"}, True),
             ("the service computes more", backend_does(2), MORE | CPU, True)]),
    (Bind, [HOGS, QUOTA, PAUSED]),
    (Prometheus, [HOGS, QUOTA, BUILD]),
]))
