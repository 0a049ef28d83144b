"""Inspector: looks at weights, and at the same weights again for a fraction of the cost."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from wtransport.memory.names import named_values
from wtransport.memory.tensors import Block, SourceWeights, inspect_named
from wtransport.pacing import paced
from wtransport.weights.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence


_PLAIN: Final = (torch.Tensor, nn.Parameter)

Form = tuple[object, ...]
Place = tuple[int, Form]


@dataclass(frozen=True, eq=False)
class _Seen:
    """What was seen last; it keeps no tensor alive.

    Attributes:
        keys: The mapping's own names, in the manifest's order; None if the weights were a module.
        values: The very tensors.
        places: What may change about a tensor that stays the same object.
        signature: All that decides what ``inspect`` says.
    """

    manifest: Manifest
    blocks: tuple[Block, ...]
    keys: tuple[str, ...] | None
    values: tuple[weakref.ref[torch.Tensor], ...]
    places: tuple[Place, ...]
    signature: tuple[object, ...]

    def again(self, weights: Mapping[str, object]) -> SourceWeights | None:
        """What ``inspect`` says, if *weights* are the same objects where they were; else None."""
        if self.keys is None or len(weights) != len(self.keys):
            return None
        owners: list[torch.Tensor] = []
        versions: list[int | None] = []
        try:
            for key, reference, place in zip(self.keys, self.values, self.places, strict=True):
                value = reference()
                if value is None or weights[key] is not value or value.data_ptr() != place[0] or _form(value) != place[1]:
                    return None
                owners.append(value)
                versions.append(value._version)
        except (KeyError, RuntimeError):
            return None  # a name is gone; or the memory is, or torch counts no writes: inspect() says what it is
        # One tuple for both: a pair a tensor would be work for the garbage collector at every put.
        plain = tuple(owners)
        return SourceWeights(self.manifest, self.blocks, plain, plain, tuple(versions))


class Inspector:
    """Remembers the last weights it was shown.

    A training loop puts the same tensors again and again: while names, memory, dtypes, shapes, strides and flags are those of the time
    before, so are the manifest and the blocks. Everything that ``inspect`` judges by is part of that comparison. Safe to use from any
    thread.
    """

    def __init__(self) -> None:
        self._last: _Seen | None = None

    def look(self, weights: object) -> SourceWeights:
        """See ``inspect``.

        Raises:
            WeightsError: If something in *weights* cannot be moved as it is.
        """
        last = self._last
        if last is not None and isinstance(weights, Mapping):
            found = last.again(weights)
            if found is not None:
                return found
        named = named_values(weights)
        plain = [value for _, value in named if type(value) in _PLAIN and isinstance(value, torch.Tensor)]
        signature = _signature([name for name, _ in named], plain) if len(plain) == len(named) else None
        if signature is not None and last is not None and last.signature == signature:
            versions = tuple([None if value.is_inference() else value._version for value in plain])
            seen = SourceWeights(last.manifest, last.blocks, tuple(plain), tuple(plain), versions)
            if not isinstance(weights, Mapping):
                return seen  # a module makes new tensor objects every time: there is nothing to know them again by
        else:
            seen = inspect_named(named)
        if signature is not None:
            keys = tuple(meta.name for meta in seen.manifest.tensors)
            known = isinstance(weights, Mapping) and all(key in weights for key in keys)
            forms: dict[object, Any] = {}
            places = tuple([_place(value, forms) for value in paced(plain)])
            values = tuple([weakref.ref(value) for value in plain])
            self._last = _Seen(seen.manifest, seen.blocks, keys if known else None, values, places, signature)
        return seen


def _place(tensor: torch.Tensor, forms: dict[object, Any]) -> Place:
    """What assigning to ``.data``, or an operation in place, may change about a tensor; equal *forms* are kept once."""
    form = _form(tensor)
    return (tensor.data_ptr(), forms.setdefault(form, form))


def _form(tensor: torch.Tensor) -> Form:
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_neg() or tensor.is_conj())


def _signature(names: Sequence[str], values: Sequence[torch.Tensor]) -> tuple[object, ...] | None:
    """All that decides what ``inspect`` says of plain tensors; None if one has no plain memory."""
    found: list[object] = []
    # Flat, and what many tensors share only once: a tuple a tensor would be walked by every full garbage collection.
    pool: dict[object, object] = {}
    try:
        for name, value in paced(zip(names, values, strict=True)):
            storage = value.untyped_storage()
            kind = (value.dtype, value.layout, value.device.type, value.is_conj(), value.is_neg(), value.is_inference())
            form = (value.shape, value.stride(), kind)
            found += (name, storage._cdata, storage.nbytes(), value.storage_offset(), value.data_ptr(), pool.setdefault(form, form))
    except (RuntimeError, NotImplementedError):
        return None  # inspect() says what it is
    return tuple(found)
