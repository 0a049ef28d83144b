"""A run on the terminal: live where it can be, one plain line a second where not."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wtransport.demo.spec import DIGITS, LENGTH, RANDOM_REWARD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wtransport.demo.progress import Progress
    from wtransport.demo.result import Result

_BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 60
_FRAMES_PER_S = 8
_MOST_PROBLEMS = 10


class View(Protocol):
    """Shows a run while it goes on."""

    def update(self, progress: Progress) -> None:
        """Show *progress*; called often."""


class Silent:
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        """Show nothing."""


class Lines:
    """One line a second, for what is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0
        self._steps = 0

    def update(self, progress: Progress) -> None:
        """Print a line if the last one is a second old, and something has been learnt since: the processes' end takes its time."""
        steps = len(progress.steps)
        if progress.age_s >= self._next_s and (not steps or steps != self._steps):
            self._next_s = max(self._next_s + 1.0, progress.age_s)
            self._steps = steps
            self._console.print(line(progress), highlight=False, soft_wrap=True)


class Panels:
    """A picture that is drawn anew in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def update(self, progress: Progress) -> None:
        """Hand over the next frame."""
        self._live.update(frame(progress))


@contextlib.contextmanager
def view(console: Console) -> Iterator[View]:
    """The view that suits *console*."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=_FRAMES_PER_S) as live:
        yield Panels(live)


def line(progress: Progress) -> str:
    """The run in one plain line."""
    if not progress.steps:
        waiting = "training" if progress.started else "trainer"
        return f"{progress.age_s:5.1f} s  starting, waiting for the {waiting}"
    versions = " ".join(f"{name} v{version}" for name, version in sorted(progress.versions.items()))
    return (
        f"{progress.elapsed_s:5.1f} s  step {len(progress.steps):4d}"
        f"  reward {_figure(progress.reward)} (random {RANDOM_REWARD:.2f})"
        f"  exact {_figure(progress.exact)}"
        f"  trainer v{progress.version} {versions}"
        f"  staleness {_figure(progress.staleness, 1)}"
        f"  put {_figure(progress.put_gbps)} GB/s"
        f"  {progress.samples_per_s:.0f} samples/s"
    )


def frame(progress: Progress) -> Panel:
    """The run as one picture."""
    started = progress.started
    size = f"{started.num_parameters / 1e6:.1f} M parameters, " if started else ""
    title = f"policy gradient: reverse {LENGTH} digits · {size}1 trainer, {len(progress.generators)} generators"
    return Panel(
        Group(_clock(progress), Text(), _learning(progress), Text(), _members(progress)),
        title=title,
        title_align="left",
        padding=(1, 2),
    )


def _clock(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(
        ProgressBar(total=progress.seconds, completed=min(progress.elapsed_s, progress.seconds), width=40),
        f"{progress.elapsed_s:.0f} of {progress.seconds:.0f} s",
        f"step {len(progress.steps)}",
        f"{progress.samples_per_s:.0f} samples/s",
    )
    return table


def _learning(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "reward",
        Text(_figure(progress.reward, 3), style="bold green"),
        Text(sparkline(progress.curve(_CURVE_WIDTH)), style="green"),
    )
    table.add_row("exact", Text(_figure(progress.exact, 3), style="bold"), f"random reward {RANDOM_REWARD:.2f}, {DIGITS} digits")
    return table


def _members(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for column in ("member", "version", "shown", ""):
        table.add_column(column, justify="left" if column in ("member", "") else "right")
    put = f"put {_figure(progress.put_gbps)} GB/s · staleness {_figure(progress.staleness, 1)} versions"
    table.add_row("trainer", f"{progress.version}", "", put)
    for name in progress.generators:
        version = progress.versions.get(name)
        late = "" if version is None else f"{progress.version - version} behind the trainer"
        table.add_row(name, "-" if version is None else f"{version}", f"{progress.shown[name]}", late)
    return table


def print_result(console: Console, result: Result) -> None:
    """Print the end of a run."""
    before, after = _figure(result.reward_before, 3), _figure(result.reward_after, 3)
    staleness = _figure(result.staleness_mean, 1)
    rows = {
        "reward": f"{before} -> {after} on held-out prompts, greedy (random {result.random_reward:.2f})",
        "exact answers": f"{_percent(result.exact_before)} -> {_percent(result.exact_after)}",
        "training": f"{result.seconds:.1f} s, {result.steps} steps, {result.samples} samples",
        "policy": f"{result.num_parameters / 1e6:.2f} M parameters, {result.nbytes_version / 1e6:.1f} MB a version",
        "staleness": f"{staleness} versions on average, {result.staleness_max} at most",
        "versions": f"{result.versions} put; deliveries: {_counts(result.outcomes)}",
        "shown": _counts(result.shown),
        "verified": f"{result.batches_verified} of {result.steps} batches drawn with the very bytes put; "
        f"{result.ends_verified} of {len(result.shown)} generators end with the trainer's bytes",
        "moved": f"{result.nbytes_moved / 1e9:.2f} GB, {_figure(result.put_gbps)} GB/s a put",
        "flight records": result.recorder or "-",
    }
    for name, text in rows.items():
        console.print(Text.assemble((f"{name:<16}", "dim"), text), soft_wrap=True)
    for problem in result.problems[:_MOST_PROBLEMS]:
        console.print(Text(f"problem: {problem}", style="bold red"), soft_wrap=True)
    if len(result.problems) > _MOST_PROBLEMS:
        console.print(f"and {len(result.problems) - _MOST_PROBLEMS} more")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def sparkline(values: list[float]) -> str:
    """One bar for each of *values*, which lie between 0 and 1."""
    return "".join(_BARS[min(len(_BARS) - 1, int(value * len(_BARS)))] for value in values)


def _figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
