"""SlotLayout: where each distinct tensor of a manifest lies in one region of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from wtransport.weights.manifest import Manifest

ALIGNMENT: Final = 256


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """Offsets of the distinct tensors, each row-major and contiguous, in canonical order.

    Equal manifests give equal layouts.

    Attributes:
        offsets: int64 [n], byte offset of each canonical tensor, a multiple of 256.
        sizes: int64 [n], bytes of each canonical tensor's box.
        nbytes: Bytes of the whole slot, a multiple of 256; 0 if there is nothing to hold.
    """

    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    nbytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the layout of *manifest*."""
        sizes = np.array([meta.nbytes for meta in manifest.canonical], dtype=np.int64)
        ends = np.cumsum((sizes + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)
        return cls(
            ends - (sizes + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT,
            sizes,
            int(ends[-1]) if len(ends) else 0,
        )
