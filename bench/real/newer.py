"""Programs that the judge met after those of later.py: training by TensorFlow and LightGBM, a runtime of neural networks whose
threads spin, a database within the process."""

from later import Trains, installed
from others import ONE
from runtimes import PAUSED, SHORT
from servers import BUILD, QUOTA

KERAS = """
import os
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import numpy, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(2)
tf.config.threading.set_inter_op_parallelism_threads(2)
rng = numpy.random.default_rng(1)
x, y = rng.normal(size=(8192, 28, 28, 1)).astype('float32'), rng.integers(0, 10, 8192)
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(16, 3, activation='relu'), tf.keras.layers.MaxPooling2D(),
    tf.keras.layers.Conv2D(32, 3, activation='relu'), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10),
])
model.compile('adam', tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
class Told(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print('batch', flush=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(8192).batch(64).prefetch(2)
model.fit(data, epochs=10000, verbose=0, callbacks=[Told()])
"""

LIGHT = """
import numpy, lightgbm
rng = numpy.random.default_rng(1)
x = rng.normal(size=(50000, 20)).astype('float32')
y = (x[:, 0] + x[:, 1] ** 2 > 1).astype('float32')
told = lambda env: print('round', flush=True)
while True:
    data = lightgbm.Dataset(x, y)
    lightgbm.train({'objective': 'binary', 'num_threads': 2, 'verbose': -1}, data, 300, callbacks=[told])
"""

ONNX = """
import numpy, onnx, onnxruntime
from onnx import TensorProto, helper, numpy_helper
rng = numpy.random.default_rng(1)
sizes, nodes, weights, at = [512, 1024, 1024, 1024, 512], [], [], 'x'
for n, (a, b) in enumerate(zip(sizes, sizes[1:])):
    weights.append(numpy_helper.from_array((rng.normal(size=(a, b)) / a ** 0.5).astype('float32'), f'w{n}'))
    nodes += [helper.make_node('MatMul', [at, f'w{n}'], [f'm{n}']), helper.make_node('Relu', [f'm{n}'], [f'r{n}'])]
    at = f'r{n}'
one = lambda name, width: helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, width])
graph = helper.make_graph(nodes, 'layers', [one('x', 512)], [one(at, 512)], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=['CPUExecutionProvider'])
x = rng.normal(size=(64, 512)).astype('float32')
while True:
    session.run(None, {'x': x})
    print('answer', flush=True)
"""

DUCK = """
import duckdb
base = duckdb.connect(config={'threads': 2})
base.execute("create table sales as select range as id, range % 1000 as shop, hash(range) % 10000 as price from range(1000000)")
while True:
    base.execute('select shop, sum(price), avg(price), count(*) from sales group by shop order by 2 desc').fetchall()
    print('query', flush=True)
"""


class Keras(Trains):
    """A convolutional network that Keras fits; a unit is a batch."""

    name, figure, holds, text = "Keras", "keras", "batch", KERAS
    module = "tensorflow"


class LightGbm(Trains):
    """Gradient boosting, a round at a time."""

    name, figure, holds, text = "LightGBM", "lightgbm", "round", LIGHT
    module = "lightgbm"


class Onnx(Trains):
    """A model's answers one after the other, by two threads that spin while they wait for each other."""

    name, figure, holds, text = "ONNX Runtime", "onnx", "answer", ONNX
    module = "onnxruntime"


class Duck(Trains):
    """A query over a million rows again and again, by the threads of the database within."""

    name, figure, holds, text = "DuckDB", "duckdb", "query", DUCK
    module = "duckdb"


ALL = list(installed([
    (Keras, [ONE, QUOTA, BUILD]),
    (LightGbm, [ONE, QUOTA, SHORT]),
    (Onnx, [ONE, QUOTA, PAUSED]),
    (Duck, [ONE, QUOTA, BUILD]),
]))
