"""Memory as the seam sees it.

Registered here, granted there, and what was stored through a grant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from wtransport.errors import ProtocolError

if TYPE_CHECKING:
    from wtransport._native import LocalRegion, SharedRegion


@dataclass(frozen=True)
class RemoteRegion:
    """A grant as the other side knows it; worthless on any endpoint but the one it was made for.

    Attributes:
        backend: The backend that made the grant.
        key: 63 random bits that name the memory on its endpoint; later generations of shared memory may keep the key.
        generation: The memory's generation when it was granted; refused once the memory has moved
            on.
        nbytes: Size of the granted memory.
    """

    backend: str
    key: int
    generation: int
    nbytes: int

    def to_wire(self) -> dict[str, object]:
        """Return the map that travels in a control message."""
        return {
            "v": 1,
            "backend": self.backend,
            "key": self.key,
            "generation": self.generation,
            "nbytes": self.nbytes,
        }

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Check and decode what :meth:`to_wire` made.

        Raises:
            ProtocolError: If fields are missing or unknown, of another type, or out of range.
        """
        if not isinstance(wire, dict) or wire.keys() != {"v", "backend", "key", "generation", "nbytes"} or wire["v"] != 1:
            raise ProtocolError("a remote region's description has missing or unknown fields")
        if not isinstance(wire["backend"], str) or not 0 < len(wire["backend"]) <= 64:
            raise ProtocolError("a remote region's description names no backend")
        for name in ("key", "generation", "nbytes"):
            value = wire[name]
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise ProtocolError(f"a remote region's {name} is out of range")
        return cls(wire["backend"], wire["key"], wire["generation"], wire["nbytes"])


class MemoryRegion:
    """Memory registered with a backend; whoever holds this keeps the memory alive.

    Args:
        backend: Name of the backend.
        memory: Native description of the memory.
        owner: The object that the memory belongs to (tensors, a slot); kept referenced as long as
            this object lives.
    """

    def __init__(self, backend: str, memory: LocalRegion | SharedRegion, owner: object) -> None:
        self.backend = backend
        self.memory = memory
        self.owner = owner

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self.memory.nbytes

    def __repr__(self) -> str:
        return f"MemoryRegion({self.backend}, {type(self.memory).__name__}, {self.nbytes} bytes)"


@dataclass(frozen=True)
class Ledger:
    """What the owner's own CPU stored through one grant, per tensor.

    Attributes:
        digests: uint64 ``[num_digests]``, of the bytes stored.
        nbytes: int64 ``[num_digests]``, bytes stored.
    """

    digests: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
