"""Names of weights: what a mapping or module calls its tensors, without wrappers' prefixes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from torch import nn

from wtransport.errors import WeightsError

# torch.compile's own attribute: no model has a part of that name.
_COMPILED: Final = "_orig_mod"
_PARALLEL: Final = "module"


def given_names(weights: object) -> tuple[str, ...]:
    """Return the names that :func:`named_values` gives, in the order of *weights* itself.

    Raises:
        WeightsError: As there.
    """
    return tuple([name for name, _ in _named(weights)])


def named_values(weights: object) -> list[tuple[str, object]]:
    """Return the named values of *weights*, sorted by name; a module's are those of its state dict.

    The prefixes of ``torch.compile`` and of the data-parallel wrappers are taken off: the names are
    the wrapped model's. In a mapping only ``_orig_mod.`` can be told from a part of the model.

    Args:
        weights: A mapping of names to tensors, or a module.

    Raises:
        WeightsError: If *weights* is neither, a name is no string, or two names become the same.
    """
    found = sorted(_named(weights), key=lambda pair: pair[0])
    _check_unique(name for name, _ in found)
    return found


def _named(weights: object) -> list[tuple[str, object]]:
    wrappers: dict[str, str] = {}
    if isinstance(weights, nn.Module):
        wrappers = _wrappers(weights)
        items: list[tuple[object, object]] = list(weights.state_dict().items())
    elif isinstance(weights, Mapping):
        items = list(weights.items())
    else:
        raise _not_weights(weights)
    found: list[tuple[str, object]] = []
    for name, value in items:
        if not isinstance(name, str):
            raise WeightsError(
                f"a name is {type(name).__name__} {name!r:.60}, not a string",
                hint="give every tensor a string name",
            )
        found.append((_stripped(name, wrappers), value))
    return found


def _not_weights(weights: object) -> WeightsError:
    kind = type(weights).__name__
    if isinstance(weights, torch.Tensor):
        return WeightsError("one tensor has no name", hint='give it one: {"name": tensor}')
    if isinstance(weights, Iterator):
        return WeightsError(
            f"weights given as a {kind} would be used up by the first look at them",
            hint="materialise them first: dict(pairs), while what they come from is still open",
        )
    if isinstance(weights, Iterable):
        return WeightsError(f"weights given as a {kind} are not a mapping", hint="materialise them: dict(pairs)")
    return WeightsError(f"a {kind} has no weights", hint="give a module, its state_dict(), or a dict of tensors")


def _wrappers(module: nn.Module) -> dict[str, str]:
    """Map the path of each wrapper in *module* to the segment that it puts into its names."""
    compiled = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, compiled):
            found[path] = _COMPILED
        elif isinstance(part, parallel):
            found[path] = _PARALLEL
    return found


def _stripped(name: str, wrappers: Mapping[str, str]) -> str:
    if not wrappers and _COMPILED not in name:
        return name
    kept = []
    path = ""
    for segment in name.split("."):
        if segment != _COMPILED and wrappers.get(path) != segment:
            kept.append(segment)
        path = f"{path}.{segment}" if path else segment
    return ".".join(kept)


def _check_unique(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise WeightsError(
            f"{len(twice)} names are equal without wrappers' prefixes: {', '.join(twice[:5])}",
            tensor=twice[0],
            hint="put the wrapped model or the plain one, not both",
        )
