"""What training loops do, and which steps that makes: each case is a line of events and what is to be written.

    d v n   a batch is fetched: by the loop, from a second loader, without gradients     D V N   the loader's end
    f       time passes; a forward pass, where gradients follow      b   gradients are computed
    A B     an optimizer steps          c   a checkpoint             g   garbage is collected, inside of what follows
    { }     a framework's evaluation    ( )   a framework computes a loss
Each event takes 1 ms, `g` 1 ms more of the one after it. A result is a step with its parts, `|` between steps.
"""

import sys
import types
from pathlib import Path

written = []
native = types.ModuleType("gpuwhy._native")
numbers = iter(range(10**6))
native.current_step = lambda: None
native.next_number = lambda: next(numbers)
native.now = lambda: 0
native.step = types.SimpleNamespace(marked=lambda: 0)
native.write_phase = lambda name, start, end, step: written.append((end, start, name, step))
native.write_step = lambda name, start, end, size, rank, seq: written.append((end, start, name, ("step", seq, size)))
package = types.ModuleType("gpuwhy")
package.__path__ = [str(Path(__file__).resolve().parent.parent / "python/gpuwhy")]
sys.modules.update({"gpuwhy": package, "gpuwhy._native": native})

from gpuwhy._training import Loop  # noqa: E402

MS = 1_000_000
SHORT = {"data": "d", "forward": "f", "backward": "b", "optimizer": "o", "checkpoint": "c", "gc": "g", "evaluation": "e"}


def play(events, live):
    """What a loop with so many optimizers writes for these events."""
    written.clear()
    loop, at, later = Loop(None), MS, 0
    for event in events.replace(" ", ""):
        if event == "g":
            later += 1
            continue
        start, at = at, at + MS * (1 + later)
        for n in range(later):
            loop.collected("gc", start + n * MS + 1, start + (n + 1) * MS)
        later = 0
        if event in "dvnDVN":
            loop.fetch("dvn".index(event.lower()), start, at, event.isupper(), event not in "nN")
            if event.islower():
                loop.given(at, 8)
        elif event == "b":
            loop.backward_begins(start)
            loop.backward_ends(start, at)
        elif event in "AB":
            loop.before_optimizer(event, start)
            loop.part("optimizer", start, at)
            loop.after_optimizer(event, at, live)
        elif event == "c":
            loop.part("checkpoint", start, at)
        elif event in "{}":
            (loop.evaluation_begins if event == "{" else loop.evaluation_ends)(start)
        elif event in "()":
            (loop.forward_begins if event == "(" else loop.forward_ends)(start)
    loop.finish()
    return told()


def told():
    """What was written, as text; and that it was written in the order of its ends, as the recorder wants."""
    ends = [end for end, *_ in written]
    assert ends == sorted(ends), f"written out of order: {written}"
    steps, parts = [], []
    for end, start, name, what in written:
        if isinstance(what, tuple):
            inner = "".join(SHORT[part] for _, _, part, _ in sorted(parts, key=lambda p: (p[1], -p[0])))
            assert all(begin >= start for _, begin, *_ in parts), f"a part begins before its step: {parts}"
            assert all(of == what[1] for *_, of in parts), f"a part of another step: {parts}"
            steps.append(f"{name}:{inner}" + (f"/{what[2]}" if what[2] else ""))
            parts = []
        elif what is None:
            steps.append(f"({SHORT[name]})")
        else:
            parts.append((end, start, name, what))
    return " ".join(steps)


CASES = [
    ("a plain loop", 1, "dfbA dfbA D", "train:dfbo/8 train:dfbo/8 (d)"),
    ("it saves before it trains", 1, "c dfbA cdfbA", "(c) train:dfbo/8 train:cdfbo/8"),
    ("an engine that only saves", 0, "ccgc", "(c) (c) (g) (c)"),
    ("two epochs", 1, "dfbA D dfbA D", "train:dfbo/8 train:ddfbo/8 (d)"),
    ("four batches accumulated", 1, "dfb dfb dfb dfbA D", "train:dfbdfbdfbdfbo/32 (d)"),
    ("all batches fetched first", 1, "dddd fb fb fb fbA", "train:ddddfbfbfbfbo/32"),
    ("two optimizers, one round each batch", 2, "dfbA fbB dfbA fbB", "train:dfbofbo/8 train:dfbofbo/8"),
    ("a critic with batches of its own", 2, "dfbA dfbA dfbA fbB dfbA dfbA dfbA fbB",
     "train:dfbodfbodfbofbo/24 train:dfbodfbodfbofbo/24"),
    ("one round only", 2, "dfbA dfbA fbB", "train:dfbodfbofbo/16"),
    ("a second optimizer that is never used", 2, "dfbA dfbA D", "train:dfbo/8 train:dfbo/8 (d)"),
    ("the same for long", 2, "dfbA" * 20, " ".join(["train:dfbo/8"] * 20)),
    ("one optimizer for long, then the other", 2, "dfbA" * 20 + "dfbB" * 3, " ".join(["train:dfbo/8"] * 23)),
    ("one training after another", 2, "dfbA" * 3 + "{}" + "dfbB" * 3, " ".join(["train:dfbo/8"] * 3 + ["evaluation:"] +
     ["train:dfbo/8"] * 3)),
    ("an optimizer that joins later", 2, "dfbA" * 3 + "{}" + "dfbAfbB" * 4, " ".join(["train:dfbo/8"] * 3 + ["evaluation:"] +
     ["train:dfbofbo/8"] * 4)),
    ("evaluation without gradients", 1, "dfbA D nfnfN dfbA", "train:dfbo/8 (d) evaluation: train:dfbo/8"),
    ("evaluation that switches gradients off within", 1, "dfbA D vfvfV dfbA D",
     "train:dfbo/8 (d) evaluation: train:dfbo/8 (d)"),
    ("the program ends with it", 1, "dfbA D vfvfV", "train:dfbo/8 (d) evaluation:"),
    ("a checkpoint after evaluation", 1, "dfbA D nfN c dfbA", "train:dfbo/8 (d) evaluation: train:cdfbo/8"),
    ("a checkpoint before evaluation", 1, "dfbA c nfN dfbA", "train:dfbo/8 (c) evaluation: train:dfbo/8"),
    ("evaluation in the middle of a step", 1, "dfb nfN dfbA", "train:dfbedfbo/16"),
    ("two loaders, a batch of each", 1, "dvfbA dvfbA", "train:ddfbo/16 train:ddfbo/16"),
    ("two loaders, accumulated", 1, "dvfb dvfbA dvfb dvfbA", "train:ddfbddfbo/32 train:ddfbddfbo/32"),
    ("a loop left in its middle", 1, "dfbA dfbA d", "train:dfbo/8 train:dfbo/8 (d)"),
    ("a framework fetches ahead and says when it computes", 1, "dd f(f)f b A d (f) b A",
     "train:ddfbo/16 train:dfbo/8"),
    ("a framework evaluates", 1, "dfbA d {dfdfD} fbA", "train:dfbo/8 (d) evaluation: train:fbo/8"),
    ("a framework's step has all inside", 1, "d (fbA) d (fbA)", "train:dfbo/8 train:dfbo/8"),
    ("garbage within a part", 1, "dfgbA dfbgA", "train:dfbgo/8 train:dfbog/8"),
    ("inference only", 1, "nfnfN nfnfN", "evaluation: "),
]


def main():
    wrong = 0
    for name, live, events, expected in CASES:
        got = play(events, live)
        if got.split() != expected.split():
            wrong += 1
            print(f"{name}: {events}\n  expected {expected}\n  got      {got}")
    print(f"{len(CASES) - wrong} of {len(CASES)} loops make the steps that they should")
    sys.exit(wrong > 0)


main()
