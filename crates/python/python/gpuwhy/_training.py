"""What the events of a training loop say about its steps. Knows no library.

A step lasts from the end of one optimizer step to the end of the next; with several optimizers, to the end of
the last one of a cycle. Which optimizers belong to a cycle is learned: it is complete when each known one has
stepped. So an end is provisional until the next batch is fetched or the next optimizer steps.
"""

from ._native import current_step, next_number, now, step as _marked, write_phase, write_step

# A known optimizer that misses this many cycles' worth of steps is taken to be gone.
_GONE = 4


class Loop:
    """The loop of one thread. Times are CLOCK_MONOTONIC ns."""

    def __init__(self, rank):
        self.rank = rank
        self.known = set()  # optimizers of a cycle, by id
        self.stepped = set()  # those that have stepped in this one
        self.taken = 0  # optimizer steps in this cycle
        self.longest = 1  # the most that a cycle had
        self.start = 0  # of the step; 0 before the first event
        self.end = 0  # provisional
        self.last = 0  # end of the last event
        self.size = None
        self.parts = []  # (name, start, end) of the step, not yet written
        self.evaluation = 0  # its start; 0 for none
        self.evaluated = 0  # end of its last fetch

    def part(self, name, start, end):
        """A part of the step has ended."""
        self._begin(start)
        if end > start:
            self.parts.append((name, start, end))
        self.last = max(self.last, end)

    def fetch(self, start, end, size, training):
        """A batch was fetched; `size` is its length, if known, and `None` at the loader's end."""
        if not training and not (self.stepped and not self.end):
            self._settle()
            self.evaluation = self.evaluation or start
            self.evaluated = self.last = end
            return
        self._end_evaluation()
        self._settle()
        self.part("data", start, end)
        if size is not None:
            self.size = (self.size or 0) + size

    def backward(self, start, end):
        """Gradients were computed; what lies before it since the last event is the forward pass."""
        self._end_evaluation()
        if self.last and self.last < start:
            self.part("forward", self.last, start)
        self.part("backward", start, end)

    def before_optimizer(self, optimizer, at):
        """An optimizer's step begins."""
        self._end_evaluation()
        if optimizer in self.stepped:
            self._settle()
        self._begin(at)

    def after_optimizer(self, optimizer, at):
        """An optimizer's step has ended, or was left out."""
        self.known.add(optimizer)
        self.stepped.add(optimizer)
        self.taken += 1
        self.last = at
        if self.taken > _GONE * self.longest + _GONE:
            self.known &= self.stepped
        self.end = at if self.known <= self.stepped else 0

    def finish(self):
        """The program ends."""
        self._end_evaluation()
        self._settle()
        self._write_rest()

    def _begin(self, at):
        if not self.start:
            self.start = at

    def _settle(self):
        """Writes the step that has ended, if one has."""
        if not self.end:
            return
        start, end, marked = self.start, self.end, _marked.marked()
        number = current_step() if marked else next_number()
        mine = [part for part in self.parts if part[2] <= end]
        self.parts = [part for part in self.parts if part[2] > end]
        for name, began, ended in mine:
            write_phase(name, began, ended, number)
        if not marked:
            write_step("train", start, end, self.size, self.rank, number)
        self.longest = max(self.longest, self.taken)
        self.start, self.end, self.size, self.taken = end, 0, None, 0
        self.stepped.clear()

    def _end_evaluation(self):
        """The next training step begins where an evaluation ends: it is a step of its own name."""
        if not self.evaluation:
            return
        # What ended first is written first, as the recorder nests spans in that order.
        self._write_rest()
        if not _marked.marked():
            start, end = self.evaluation, self.evaluated
            write_step("evaluation", start, end, None, self.rank, next_number())
        self.start, self.evaluation = self.evaluated, 0

    def _write_rest(self):
        """Writes parts that belong to no step."""
        for name, began, ended in self.parts:
            write_phase(name, began, ended, None)
        self.parts.clear()


__all__ = ["Loop", "now"]
