"""One finding of ``wtransport doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

CheckStatus = Literal["ok", "unavailable", "warning"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and what was found.

    Attributes:
        name: What was looked at.
        status: ``ok``; ``unavailable``: what depends on it cannot run here; ``warning``: it runs,
            less well or with a risk.
        reason: What was found.
        hint: What to do about it, or empty.
        required: Whether nothing of the library works without it.
    """

    name: str
    status: CheckStatus
    reason: str
    hint: str = ""
    required: bool = False

    @classmethod
    def ok(cls, name: str, reason: str, *, required: bool = False) -> Self:
        """It is as it should be."""
        return cls(name, "ok", reason, required=required)

    @classmethod
    def warning(cls, name: str, reason: str, hint: str = "") -> Self:
        """It works, but."""
        return cls(name, "warning", reason, hint)

    @classmethod
    def unavailable(cls, name: str, reason: str, hint: str = "", *, required: bool = False) -> Self:
        """It does not work."""
        return cls(name, "unavailable", reason, hint, required)
