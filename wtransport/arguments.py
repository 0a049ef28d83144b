"""What the public calls were given, checked before anything is started."""

from __future__ import annotations

import math
import operator

from wtransport.backends.registry import BackendRegistry
from wtransport.backends.select import AUTO
from wtransport.config import TransportConfig
from wtransport.errors import ConfigError

_MAX_NAME = 128


def version_number(value: object) -> int:
    """*value* as a version: an int, or what stands for one (numpy's integers); not a bool.

    Raises:
        ConfigError: If it is none, or not from 0 to 2**63-1.
    """
    number = -1
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        number = operator.index(value)
    if not 0 <= number < 2**63:
        raise ConfigError(f"version must be an int from 0 to 2**63-1, not {value!r}")
    return number


def positive_seconds(label: str, value: object) -> float:
    """*value* as a time to wait.

    Raises:
        ConfigError: If it is no positive, finite number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{label} must be a positive number of seconds, not {value!r}")
    return float(value)


def check_member(
    url: object,
    *,
    role: object,
    rank: object,
    world_size: object,
    group: object,
    name: object,
    backend: object,
    takeover: object,
    config: object,
) -> None:
    """Check what ``connect`` was given.

    Raises:
        ConfigError: If something is of another type, out of range, or contradicts the rest.
    """
    if not isinstance(url, str):
        raise ConfigError(f"url must be a string, not {url!r}")
    if config is not None and not isinstance(config, TransportConfig):
        raise ConfigError(f"config must be a TransportConfig, not {type(config).__name__}")
    if not isinstance(takeover, bool):
        raise ConfigError(f"takeover must be a bool, not {takeover!r}")
    for label, text in (("name", name), ("group", group)):
        if text is not None and not (isinstance(text, str) and 0 < len(text) <= _MAX_NAME and text.isprintable()):
            raise ConfigError(f"{label} must be 1 to {_MAX_NAME} printable characters, not {text!r:.80}")
    known = BackendRegistry().names
    if backend != AUTO and backend not in known:
        raise ConfigError(f"there is no backend {backend!r}", hint=f"auto, or one of {', '.join(known)}")
    if role not in ("trainer", "generator"):
        raise ConfigError(f"role must be 'trainer' or 'generator', not {role!r}")
    for label, number in (("rank", rank), ("world_size", world_size)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigError(f"{label} must be an int, not {number!r}")
    _check_place(role, rank, world_size, group)


def _check_place(role: object, rank: object, world_size: object, group: object) -> None:
    assert isinstance(rank, int)
    assert isinstance(world_size, int)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not within world_size {world_size}")
    if role == "generator" and group is None and world_size != 1:
        raise ConfigError("a generator with world_size above 1 needs a group")
    if role == "trainer" and group is not None:
        raise ConfigError("only generators have a group")
