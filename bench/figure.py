"""One line of a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    Attributes:
        ratio: The limit's seconds over ours (1 is the limit itself), median of the rounds; None where only a value is given.
        target: What the ratio, or the value, is to reach.
    """

    name: str
    value: float
    unit: str
    ratio: float | None
    spread: tuple[float, float] | None
    target: str
    met: bool | None
    rounds: int


def as_json(figures: list[Figure]) -> list[dict[str, object]]:
    """Plain data of the report."""
    return [asdict(figure) for figure in figures]
