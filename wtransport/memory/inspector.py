"""Inspector: looks at weights, and at the same weights again for a fraction of the cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from wtransport.memory.names import named_values
from wtransport.memory.tensors import SourceWeights, inspect

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN: Final = (torch.Tensor, nn.Parameter)

Signature = tuple[object, ...]


class Inspector:
    """Remembers the last weights it was shown.

    A training loop puts the same tensors again and again: while names, memory, dtypes, shapes, strides and flags are those of the time
    before, so are the manifest and the blocks. Everything that ``inspect`` judges by is part of that comparison. Safe to use from any
    thread.
    """

    def __init__(self) -> None:
        self._last: tuple[Signature, SourceWeights] | None = None

    def look(self, weights: object) -> SourceWeights:
        """See ``inspect``.

        Raises:
            WeightsError: If something in *weights* cannot be moved as it is.
        """
        named = named_values(weights)
        signature = _signature(named)
        last = self._last
        if signature is not None and last is not None and last[0] == signature:
            return _renewed(last[1], named)
        seen = inspect(weights)
        if signature is not None:
            self._last = (signature, seen)
        return seen


def _signature(named: Sequence[tuple[str, object]]) -> Signature | None:
    """All that decides what ``inspect`` says, if every value is a plain tensor; else None."""
    found: list[object] = []
    try:
        for name, value in named:
            if type(value) not in _PLAIN or not isinstance(value, torch.Tensor):
                return None
            storage = value.untyped_storage()
            place = (storage._cdata, storage.nbytes(), value.storage_offset(), value.data_ptr())
            kind = (value.dtype, value.layout, value.device.type, value.is_conj(), value.is_neg(), value.is_inference())
            found.append((name, place, value.shape, value.stride(), kind))
    except (RuntimeError, NotImplementedError):
        return None  # no plain memory: inspect() says what it is
    return tuple(found)


def _renewed(seen: SourceWeights, named: Sequence[tuple[str, object]]) -> SourceWeights:
    values = [value for _, value in named if isinstance(value, torch.Tensor)]
    versions = tuple(None if value.is_inference() else value._version for value in values)
    return replace(seen, owners=tuple((value, value) for value in values), versions=versions)
