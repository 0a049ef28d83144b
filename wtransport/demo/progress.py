"""The course of a run, gathered from what its processes report."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from dataclasses import dataclass, field

from wtransport.demo.reports import (
    Delivery,
    Failed,
    Finished,
    Followed,
    Judged,
    Report,
    Started,
    Stepped,
)

_RECENT_BATCHES = 16
_RECENT_PUTS = 16
_RATE_WINDOW_S = 3.0


@dataclass
class Progress:
    """Everything known about a run so far.

    Attributes:
        generators: Their names.
        seconds: Time for training.
        started: What the trainer said first.
        steps: Every step of the trainer.
        versions: The version that each generator was shown last.
        shown: How many versions each generator was shown.
        outcomes: How many deliveries came to which end.
        nbytes: Bytes written by all puts.
        judged: What each generator scored on held-out prompts.
        finished: What the trainer said last.
        failures: Processes that gave up, or ended before they should.
    """

    generators: tuple[str, ...]
    seconds: float
    started: Started | None = None
    steps: list[Stepped] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    shown: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    judged: list[Judged] = field(default_factory=list)
    finished: Finished | None = None
    failures: list[Failed] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _puts: deque[Delivery] = field(default_factory=lambda: deque(maxlen=_RECENT_PUTS))

    def add(self, report: Report) -> None:
        """Take one report in."""
        match report:
            case Started():
                self.started = report
            case Stepped():
                self.steps.append(report)
                self._arrivals.append((time.monotonic(), report.samples))
            case Delivery():
                self.outcomes.update(report.outcomes.values())
                self.nbytes += report.nbytes
                if set(report.outcomes.values()) == {"delivered"}:
                    self._puts.append(report)
            case Followed():
                self.versions[report.generator] = report.version
                self.shown[report.generator] += 1
            case Judged():
                self.judged.append(report)
            case Finished():
                self.finished = report
            case Failed():
                self.failures.append(report)

    @property
    def age_s(self) -> float:
        """Seconds since the run was started."""
        return time.monotonic() - self._began

    @property
    def elapsed_s(self) -> float:
        """Seconds of training."""
        return self.steps[-1].elapsed_s if self.steps else 0.0

    @property
    def version(self) -> int:
        """The trainer's newest version; the first is made before any step."""
        return self.steps[-1].version if self.steps else 1

    @property
    def reward(self) -> float | None:
        """Mean over the last batches; None before the first."""
        return _mean([step.reward for step in self.steps[-_RECENT_BATCHES:]])

    @property
    def exact(self) -> float | None:
        """Share of answers right in full, over the last batches."""
        return _mean([step.exact for step in self.steps[-_RECENT_BATCHES:]])

    @property
    def staleness(self) -> float | None:
        """Version trained on minus version sampled with, over the last batches."""
        return _mean([step.staleness for step in self.steps[-_RECENT_BATCHES:]])

    @property
    def samples(self) -> int:
        """Answers trained on."""
        return sum(step.samples for step in self.steps)

    @property
    def samples_per_s(self) -> float:
        """Answers trained on, a second, of late."""
        now = time.monotonic()
        while self._arrivals and self._arrivals[0][0] < now - _RATE_WINDOW_S:
            self._arrivals.popleft()
        span_s = min(_RATE_WINDOW_S, max(self.elapsed_s, 1e-3))
        return sum(count for _, count in self._arrivals) / span_s

    @property
    def put_gbps(self) -> float | None:
        """GB/s of the last puts that every generator took, from the call to the last outcome."""
        seconds = sum(put.seconds for put in self._puts)
        return sum(put.nbytes for put in self._puts) / seconds / 1e9 if seconds else None

    def curve(self, width: int) -> list[float]:
        """Mean reward of up to *width* equal stretches of the run so far."""
        rewards = [step.reward for step in self.steps]
        width = min(width, len(rewards))
        edges = [len(rewards) * index // width for index in range(width + 1)] if width else []
        return [sum(rewards[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]


def _mean(values: list[float] | list[int]) -> float | None:
    return sum(values) / len(values) if values else None
