"""Training loops as people write them. They import nothing of gpuwhy, and each keeps a ledger of what it did itself:
loops.py CASE. The ledger is the file that LEDGER names, one per rank: a name, its begin and its end, ns.

A step lasts from the end of one optimizer step to the end of the next, with several optimizers of the last one of a
round; only their number is compared, since frameworks do not say where their steps begin.
"""

import io
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

clock = time.monotonic_ns
ledger = []
BATCH, ROWS, WIDTH = 8, 320, 64


def note(name, start):
    ledger.append((name, start, clock()))


def timed(name, function, *args, **kwargs):
    start = clock()
    try:
        return function(*args, **kwargs)
    finally:
        note(name, start)


def stepped():
    ledger.append(("train", 0, 0))


class Rows(Dataset):
    """Rows that know how long the loading of a batch took."""

    def __init__(self, rows=ROWS, keys=None):
        self.rows, self.keys = rows, keys
        self.inputs = torch.randn(rows, WIDTH)

    def __len__(self):
        return self.rows

    def __getitem__(self, n):
        return self.inputs[n], self.inputs[n, :1]


class Timed(Rows):
    """Its batches are timed where nobody sees the loader itself, as under a framework."""

    def __getitems__(self, numbers):
        self.start = clock()
        return [self[n] for n in numbers]

    def collate(self, rows):
        x, y = (torch.stack(column) for column in zip(*rows))
        note("data", self.start)
        return {"x": x, "y": y}


class Stream(IterableDataset):
    """Rows of no known number; each worker has its share."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for n in range(first, ROWS, every):
            time.sleep(0.0005)
            yield torch.full((WIDTH,), float(n)), torch.zeros(1)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, 1))


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def batches(loader):
    """Each batch of a loader, timed; also the call that finds its end."""
    iterator = iter(loader)
    while True:
        try:
            batch = timed("data", next, iterator)
        except StopIteration:
            return
        yield batch


def epoch(model, optimizer, loader, every=1):
    for n, (x, y) in enumerate(batches(loader), 1):
        loss = timed("forward", loss_of, model, x, y)
        timed("backward", loss.backward)
        if n % every == 0:
            timed("optimizer", optimizer.step)
            stepped()
            optimizer.zero_grad()


def plain(every=1, model=None, loader=None, epochs=3):
    model = net() if model is None else model
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Rows(), batch_size=BATCH, shuffle=True) if loader is None else loader
    for _ in range(epochs):
        epoch(model, optimizer, loader, every)
    return model


def accumulate():
    plain(every=4)


def evaluation():
    """Three ways to evaluate between epochs, and a checkpoint."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader, held_out = DataLoader(Rows(), batch_size=BATCH), DataLoader(Rows(160), batch_size=BATCH)

    @torch.no_grad()
    def decorated():
        for x, y in held_out:
            loss_of(model, x, y)

    def within():
        for x, y in held_out:
            with torch.no_grad():
                loss_of(model, x, y)

    def inference():
        with torch.inference_mode():
            for x, y in held_out:
                loss_of(model, x, y)

    for evaluate in (decorated, within, inference) * 2:
        model.train()
        epoch(model, optimizer, loader)
        model.eval()
        timed("evaluation", evaluate)
        timed("checkpoint", torch.save, model.state_dict(), io.BytesIO())


def gan(critics=1):
    maker, judge = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, WIDTH)), net()
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.001)
    of_judge = torch.optim.Adam(judge.parameters(), lr=0.001)
    ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    loss = nn.BCEWithLogitsLoss()
    for _ in range(2):
        for n, (real, _) in enumerate(batches(DataLoader(Rows(), batch_size=BATCH)), 1):
            of_judge.zero_grad()
            made = maker(torch.randn(BATCH, 64))
            timed("backward", loss(judge(real), ones).backward)
            timed("backward", loss(judge(made.detach()), zeros).backward)
            timed("optimizer", of_judge.step)
            if n % critics == 0:
                of_maker.zero_grad()
                timed("backward", loss(judge(made), ones).backward)
                timed("optimizer", of_maker.step)
                stepped()


def critics():
    """Five batches for the critic, then one step of the generator: one round."""
    gan(critics=5)


def overflow():
    """A scaler finds each tenth batch's gradients not finite."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    left_out = 0
    for _ in range(2):
        for n, (x, y) in enumerate(batches(DataLoader(Rows(), batch_size=BATCH))):
            start = clock()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, x, y) * (float("inf") if n % 10 == 3 else 1.0)
            scaled = scaler.scale(loss)
            note("forward", start)
            timed("backward", scaled.backward)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            stepped()
            left_out += scaler.get_scale() < before
            optimizer.zero_grad()
    assert left_out == 8, left_out


def lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
    for x, y in batches(DataLoader(Rows(), batch_size=BATCH)):

        def closure():
            optimizer.zero_grad()
            loss = timed("forward", loss_of, model, x, y)
            timed("backward", loss.backward)
            return loss

        optimizer.step(closure)
        stepped()


def iterable():
    plain(loader=DataLoader(Stream(), batch_size=BATCH, num_workers=2))


def forkserver():
    plain(loader=DataLoader(Rows(), batch_size=BATCH, num_workers=2, multiprocessing_context="forkserver"))


def compiled():
    """The model compiled whole, then a step compiled as it is, optimizer included; the width of a batch changes."""
    backend = os.environ.get("BACKEND", "aot_eager")
    plain(model=torch.compile(net(), backend=backend, fullgraph=True), epochs=2)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())

    @torch.compile(backend=backend)
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()

    for rows in (BATCH, 5, 3):
        for x, y in batches(DataLoader(Rows(80), batch_size=rows)):
            step(x, y)
            stepped()
    # The optimizer alone.
    whole = torch.compile(optimizer.step, backend=backend)
    for x, y in batches(DataLoader(Rows(80), batch_size=BATCH)):
        loss = timed("forward", loss_of, model, x, y)
        timed("backward", loss.backward)
        whole()
        stepped()
        optimizer.zero_grad()


def trainer():
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, y):
            return {"loss": loss_of(self.net, x, y)}

    class Clock(TrainerCallback):
        def on_pre_optimizer_step(self, *_args, **_more):
            self.start = clock()

        def on_optimizer_step(self, *_args, **_more):
            note("optimizer", self.start)
            stepped()

    class Mine(Trainer):
        def compute_loss(self, *args, **kwargs):
            if not torch.is_grad_enabled():
                return super().compute_loss(*args, **kwargs)
            return timed("forward", super().compute_loss, *args, **kwargs)

        def evaluate(self, *args, **kwargs):
            return timed("evaluation", super().evaluate, *args, **kwargs)

        def _save_checkpoint(self, *args, **kwargs):
            return timed("checkpoint", super()._save_checkpoint, *args, **kwargs)

    for every in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            rows, held_out = Timed(), Rows(80)
            arguments = TrainingArguments(
                folder, num_train_epochs=2, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
                gradient_accumulation_steps=every, eval_strategy="epoch", save_strategy="epoch", disable_tqdm=True,
                remove_unused_columns=False, dataloader_pin_memory=False, logging_steps=1000, label_names=["y"],
            )
            collate = lambda rows_: rows.collate(rows_) if torch.is_grad_enabled() and in_training() else {
                "x": torch.stack([x for x, _ in rows_]), "y": torch.stack([y for _, y in rows_])}
            mine = Mine(Model(), arguments, train_dataset=rows, eval_dataset=held_out, data_collator=collate,
                        callbacks=[Clock()])
            in_training = lambda: mine.model.training
            backward = mine.accelerator.backward
            mine.accelerator.backward = lambda *args, **kwargs: timed("backward", backward, *args, **kwargs)
            mine.train()


def lightning(manual):
    import logging
    import warnings

    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")

    class SGD(torch.optim.SGD):
        def step(self, closure=None):
            start = clock()

            def mine():
                nonlocal start
                result = closure()
                start = clock()
                return result

            super().step(mine if closure else None)
            note("optimizer", start)
            stepped()

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.automatic_optimization = not manual

        def training_step(self, batch, _):
            if not manual:
                return timed("forward", loss_of, self.net, batch["x"], batch["y"])
            optimizer = self.optimizers()
            loss = timed("forward", loss_of, self.net, batch["x"], batch["y"])
            optimizer.zero_grad()
            timed("backward", self.manual_backward, loss)
            optimizer.step()

        def on_before_backward(self, _):
            self.start = clock()

        def on_after_backward(self):
            if not manual:
                note("backward", self.start)

        def validation_step(self, batch, _):
            loss_of(self.net, *batch)

        def on_validation_start(self):
            self.began = clock()

        def on_validation_end(self):
            note("evaluation", self.began)

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.01)

    rows = Timed()
    fit = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
    fit.fit(Module(), DataLoader(rows, batch_size=BATCH, collate_fn=rows.collate),
            DataLoader(Rows(80), batch_size=BATCH))


def lightning_automatic():
    lightning(manual=False)


def lightning_manual():
    lightning(manual=True)


def distributed(wrap):
    torch.distributed.init_process_group("gloo")
    try:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        sampler = torch.utils.data.DistributedSampler(Rows(), world, rank)
        plain(model=wrap(net()), loader=DataLoader(Rows(), batch_size=BATCH, sampler=sampler))
    finally:
        torch.distributed.destroy_process_group()


def ddp():
    distributed(nn.parallel.DistributedDataParallel)


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    distributed(wrap)


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
    with open(f"{os.environ['LEDGER']}.{os.environ.get('RANK', 0)}", "w") as out:
        out.writelines(f"{name} {start} {end}\n" for name, start, end in ledger)
