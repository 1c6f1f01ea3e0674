"""Training loops that keep a ledger of their own and import nothing of gpuwhy.

A line is a name and ns. A step lasts from the end of one optimizer step to the end of the next. Setting gradients to
zero is no part of the forward pass; making a loader's iterator is a part of the pass over it.
"""

import io
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

clock = time.monotonic_ns
case = sys.argv[1]
torch.manual_seed(1)
torch.set_num_threads(1)
inputs, labels = torch.randn(320, 64), torch.randn(320, 1)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)
net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
ledger = []


def timed(name, function, *args):
    start = clock()
    result = function(*args)
    ledger.append((name, clock() - start))
    return result


class Batches:
    """Times each fetch, also the last, which finds the end."""

    def __init__(self):
        self.inner = iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        start = clock()
        try:
            return next(self.inner)
        finally:
            ledger.append(("data", clock() - start))
            self.start, self.end = start, clock()


class Steps:
    """From the end of one optimizer step to the end of the next."""

    last = None

    def begin(self, at):
        if self.last is None:
            self.last = at

    def end(self):
        at = clock()
        ledger.append(("train", at - self.last))
        self.last = at


steps = Steps()


def loss_of(x, y, model=net):
    return ((model(x) - y) ** 2).mean()


def train(optimizer, every=1, epochs=2, evaluate=False):
    """A plain loop; the optimizer steps at each `every`-th batch."""
    for _ in range(epochs):
        batches = Batches()
        for n, (x, y) in enumerate(batches, 1):
            steps.begin(batches.start)
            start = batches.end
            loss = loss_of(x, y)
            ledger.append(("forward", clock() - start))
            timed("backward", loss.backward)
            if n % every == 0:
                timed("optimizer", optimizer.step)
                steps.end()
                optimizer.zero_grad()
        if evaluate:
            timed("checkpoint", torch.save, net.state_dict(), io.BytesIO())
            with torch.no_grad():
                start = clock()
                for x, y in loader:
                    loss_of(x, y)
            steps.last = clock()
            ledger.append(("evaluation", steps.last - start))


def gan():
    other = nn.Linear(64, 64)
    first = torch.optim.SGD(net.parameters(), lr=0.001)
    second = torch.optim.SGD(other.parameters(), lr=0.001)
    batches = Batches()
    for x, _ in batches:
        steps.begin(batches.start)
        for optimizer, made in ((first, other(x).detach()), (second, other(x))):
            optimizer.zero_grad()
            timed("backward", net(made).mean().backward)
            timed("optimizer", optimizer.step)
        steps.end()


def lbfgs():
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
    for x, y in Batches():
        def closure():
            optimizer.zero_grad()
            start = clock()
            loss = loss_of(x, y)
            ledger.append(("forward", clock() - start))
            timed("backward", loss.backward)
            return loss

        start = clock()
        steps.begin(start)
        optimizer.step(closure)
        steps.end()


def overflow():
    """A scaler finds each third batch's gradients not finite. What it finds is set here, as without a GPU
    it finds nothing; what follows from it is the scaler's own doing."""
    from torch.cuda.amp.grad_scaler import GradScaler, OptState

    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    has_gpu, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    scaler = GradScaler()
    torch.cuda.is_available, scaler._scale = has_gpu, torch.tensor(1.0)
    scaler._growth_tracker = torch.tensor(0)
    batches = Batches()
    for n, (x, y) in enumerate(batches):
        steps.begin(batches.start)
        start = batches.end
        loss = loss_of(x, y)
        ledger.append(("forward", clock() - start))
        timed("backward", loss.backward)
        state = scaler._per_optimizer_states[id(optimizer)]
        state["stage"] = OptState.UNSCALED
        state["found_inf_per_device"] = {"cpu": torch.tensor(float(n % 3 == 0))}
        before = net[0].weight.clone()
        scaler.step(optimizer)
        steps.end()
        assert torch.equal(before, net[0].weight) == (n % 3 == 0)


if case == "plain":
    train(torch.optim.Adam(net.parameters()), evaluate=True)
elif case == "accumulate":
    train(torch.optim.Adam(net.parameters()), every=4)
else:
    {"gan": gan, "lbfgs": lbfgs, "overflow": overflow}[case]()
for name, took in ledger:
    print(name, took)
