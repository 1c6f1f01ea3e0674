"""What the events of a training loop say about its steps. Knows no library.

A step lasts from the end of one optimizer step to the end of the next; with several optimizers, to the end of
the last one of a cycle. Which optimizers belong to a cycle is learned: it is complete when each known one has
stepped. So an end is provisional until the next batch is fetched or the next optimizer steps. While the program
has more optimizers than have stepped, ends are kept until it is clear whether the others take part.

A loader that runs without gradients, or from which batches come and no gradients follow, is an evaluation: a step
of its own, and the next training step begins at its end.
"""

from ._native import current_step, next_number, now, step as _marked, write_phase, write_step

# A known optimizer that misses this many cycles' worth of steps is taken to be gone.
_GONE = 4
# Steps of optimizers that are kept until it is clear which of them belong together.
_UNCLEAR = 16
# A forward pass that is shorter is a call between two others: no model answers in 10 us.
_LEAST_FORWARD = 10_000
# Parts that are kept at most; what a program fetches without ever training is written as it comes.
_PARTS = 4096


class _Run:
    """One pass over a loader."""

    def __init__(self, iterator, start, used=False):
        self.iterator = iterator
        self.start = self.last = start
        self.batches = 0
        self.ended = False
        self.used = used  # gradients followed its batches


class Loop:
    """The loop of one thread. Times are CLOCK_MONOTONIC ns."""

    def __init__(self, rank):
        self.rank = rank
        self.known = set()  # optimizers of a cycle, by id
        self.stepped = set()  # those that have stepped in this one
        self.steps = 0  # of optimizers, in all
        self.taken = 0  # and in this cycle
        self.longest = 1  # the most that a cycle had
        self.unclear = []  # (optimizer, end) of steps of which it is not clear where a cycle ends
        self.separate = 0  # this many optimizers live, and do not belong together
        self.start = 0  # of the step; 0 before the first event
        self.end = 0  # provisional
        self.last = 0  # end of the last event
        self.zeroed = (0, 0)  # when gradients were last set to zero
        self.computing = 0  # when a framework began to compute the loss; 0 outside of that
        self.computed = False  # a framework said when the forward pass began and ended
        self.sizes = []  # (time, length) of batches given to the program
        self.parts = []  # (name, start, end) of the step, not yet written
        self.pauses = []  # parts that came in the middle of something
        self.runs = []  # of loaders, since gradients were last computed
        self.trained = None  # the iterator whose batches had gradients
        self.backwards = 0  # since the step began
        self.evaluation = 0  # its start; 0 for none
        self.evaluated = 0  # end of its last fetch; 0 while more is to come
        self.inside = 0  # evaluations that a framework has begun and not ended

    def part(self, name, start, end):
        """A part of the step has ended. No step begins with a checkpoint: a program that only saves never trains."""
        if name != "checkpoint" or self.known:
            self._begin(start)
        self.inner(name, start, end)
        self.last = max(self.last, end)

    def inner(self, name, start, end):
        """Something took time inside of whatever the program was doing."""
        if end <= start:
            return
        if self._writes_itself() or not self.start:
            write_phase(name, start, end, current_step())
            return
        if len(self.parts) >= _PARTS:
            self._write_parts(end, None)
        self.parts.append((name, start, end))

    def collected(self, name, start, end):
        """As `inner`, but at any time, also in the middle of what is here."""
        if self._writes_itself() or not self.start:
            write_phase(name, start, end, current_step())
        elif len(self.pauses) < _PARTS:
            self.pauses.append((name, start, end))

    def fetch(self, iterator, start, end, ended, training):
        """`iterator` was asked for a batch, and has ended or gave one."""
        if self.inside:
            return
        if not training and not (self.stepped and not self.end):
            self._clear_by_now()
            self._settle()
            self.evaluation = self.evaluation or start
            self.evaluated = end if ended else 0
            self.last = end
            return
        self._end_evaluation(start)
        self._settle()
        run = next((run for run in self.runs if run.iterator == iterator), None)
        run = run or _Run(iterator, start, iterator == self.trained)
        self.runs = [*(other for other in self.runs[-8:] if other is not run), run]
        run.last, run.ended, run.batches = end, ended, run.batches + (not ended)
        self.part("data", start, end)

    def given(self, at, size):
        """The program got a batch of this length."""
        if size is not None and not self.inside and not self.evaluation:
            self.sizes.append((at, size))
            del self.sizes[:-_PARTS]

    def zero(self, start, end):
        """Gradients were set to zero: no part of the forward pass."""
        self.zeroed = (start, end)

    def forward_begins(self, at):
        """A framework begins to compute the loss; it may compute gradients and step as well."""
        self.computing, self.computed = at, False

    def forward_ends(self, at):
        """It has done so."""
        start, self.computing = self.computing, 0
        if start and not self.computed and not self.inside:
            self._end_evaluation(start)
            self.part("forward", start, at)
            self.computed = True
        else:
            self.computed = False

    def backward_begins(self, start):
        """Gradients are to be computed; what lies before it since the last event is the forward pass."""
        self._end_evaluation(start)
        self._judge_runs()
        if self.computed and not self.computing:
            self.computed = False
        elif self.last:
            self._forward(max(self.last, self.computing), start)
            self.computed = bool(self.computing)

    def backward_ends(self, start, end):
        """They have been computed."""
        self.part("backward", start, end)
        self.backwards += 1

    def before_optimizer(self, optimizer, at):
        """An optimizer's step begins."""
        self._end_evaluation(at)
        if optimizer in self.stepped:
            self._settle()
        self._begin(at)

    def after_optimizer(self, optimizer, at, live=1):
        """An optimizer's step has ended, or was left out; so many of them exist."""
        self.last = at
        self.steps += 1
        self.trained = self.runs[-1].iterator if self.runs else self.trained
        self.runs.clear()
        if live <= 1 and optimizer not in self.known:
            # The others are gone: another training.
            self._clear_by_now()
            self.known = set()
        # One that steps before the next batch is fetched belongs to the same round.
        joins = optimizer in self.known or self.stepped or not self.known and live <= max(1, self.separate)
        if joins and not self.unclear:
            self._count(optimizer, at)
            return
        self.unclear.append((optimizer, at))
        seen = {one for one, _ in self.unclear}
        first = self.unclear[0][0]
        turns = sum(a != b for (a, _), (b, _) in zip(self.unclear, self.unclear[1:]))
        if self.known and optimizer in self.known:
            self._clear(self.known | seen)
        elif len(seen) > 1 and optimizer == first and turns >= len(seen):
            self._clear(seen)
        elif len(self.unclear) >= _UNCLEAR:
            self.separate = live
            self._clear(set())

    def evaluation_begins(self, at):
        """A framework begins to evaluate."""
        self.inside += 1
        if self.inside > 1:
            return
        self._end_evaluation(at)
        self._clear_by_now()
        self._settle()
        self.evaluation, self.evaluated = at, 0

    def evaluation_ends(self, at):
        """It has ended."""
        self.inside -= 1
        if self.inside == 0:
            self.evaluated = self.evaluated or at
            self.last = at
            self.computing, self.computed = 0, False
            self._end_evaluation(at)

    def finish(self):
        """The program ends."""
        self._clear_by_now()
        self._end_evaluation(self.last)
        self._settle()
        self.runs.append(_Run(None, 0))
        self._judge_runs()
        self._write_parts(self.last, None)

    def _begin(self, at):
        if not self.start:
            self.start = at

    @staticmethod
    def _writes_itself():
        return _marked.marked()

    def _forward(self, start, end):
        """The forward pass lies in between, before or after the gradients were set to zero."""
        zero_start, zero_end = self.zeroed
        if start <= zero_start and zero_end <= end:
            start, end = max((start, zero_start), (zero_end, end), key=lambda it: it[1] - it[0])
        if end - start >= _LEAST_FORWARD:
            self.part("forward", start, end)

    def _count(self, optimizer, at):
        """One more step of an optimizer."""
        self.known.add(optimizer)
        self.stepped.add(optimizer)
        self.taken += 1
        if self.taken > _GONE * self.longest + _GONE:
            self.known &= self.stepped
        self.end = at if self.known <= self.stepped or self.separate else 0

    def _clear_by_now(self):
        """No more steps come that would make it clearer."""
        seen = {one for one, _ in self.unclear}
        self._clear(seen if len(seen) > 1 else set())

    def _clear(self, cycle):
        """It is clear which optimizers belong together; none where each step is one for itself."""
        unclear, self.unclear = self.unclear, []
        if unclear:
            self.known = set(cycle)
        for n, (optimizer, end) in enumerate(unclear):
            if optimizer in self.stepped or not cycle:
                self._settle()
            self._count(optimizer, end)
            if not cycle and n + 1 < len(unclear):
                self._settle()

    def _settle(self):
        """Writes the step that has ended, if one has."""
        if not self.end:
            return
        start, end, marked = self.start, self.end, _marked.marked()
        number = current_step() if marked else next_number()
        self._write_parts(end, number)
        if not marked:
            mine = [size for at, size in self.sizes if at <= end]
            write_step("train", start, end, sum(mine) if mine else None, self.rank, number)
        self.sizes = [size for size in self.sizes if size[0] > end]
        self.longest = max(self.longest, self.taken)
        self.start, self.end, self.taken = end, 0, 0
        self.backwards = sum(part[0] == "backward" for part in self.parts)
        self.stepped.clear()

    def _judge_runs(self):
        """Gradients are computed. Of loaders that ran out since the last ones, only the last one's batches had a use."""
        *others, latest = self.runs or [None]
        self.runs = [latest] if latest else []
        for run in others:
            if run.ended and run.batches and not run.used:
                self._drop_data(run)
                self._evaluated(run.start, run.last)
            else:
                self.runs.insert(-1, run)
        for run in self.runs:
            run.used = True

    def _drop_data(self, run):
        within = lambda start, end: run.start <= start and end <= run.last
        self.parts = [p for p in self.parts if p[0] != "data" or not within(p[1], p[2])]
        self.sizes = [size for size in self.sizes if not run.start <= size[0] <= run.last]

    def _end_evaluation(self, at):
        """Whatever comes at `at` is no evaluation."""
        if not self.evaluation or self.inside:
            return
        start, end = self.evaluation, self.evaluated or max(at, self.last)
        self.evaluation = 0
        self._evaluated(start, end)

    def _evaluated(self, start, end):
        """The next training step begins where an evaluation ends: it is a step of its own name. In the middle of a
        step it is a part of that."""
        if self.backwards:
            self.parts.append(("evaluation", start, end))
            self.parts.sort(key=lambda part: (part[2], -part[1]))
            return
        # What ended first is written first, as the recorder nests spans in that order.
        self._write_parts(end, None)
        if not _marked.marked():
            write_step("evaluation", start, end, None, self.rank, next_number())
        self.start = end

    def _write_parts(self, end, number):
        """Writes the parts up to `end`, of step `number` or of none."""
        pauses, self.pauses = self.pauses, []
        self.parts += pauses
        mine = [part for part in self.parts if part[2] <= end]
        self.parts = [part for part in self.parts if part[2] > end]
        mine.sort(key=lambda part: (part[2], -part[1]))
        for name, began, ended in mine:
            write_phase(name, began, ended, number)


__all__ = ["Loop", "now"]
