"""Update: one version in a generator's hands, stable until its lease ends."""

from __future__ import annotations

import traceback
import warnings
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import torch

    from wtransport.session.identity import Identity


class Update:
    """One complete, verified version.

    Use it as a context manager, or call :meth:`release`. Until then its memory does not change; afterwards the memory is used again for a
    later version once no tensor over it lives any more: a tensor that is kept makes this generator ``behind``, never wrong.

    Attributes:
        version: The weights' version.
        publication: The publication it belongs to, as ``term.n``.
        tensors: By name, tensors over the landing slot (no copy): the dtypes and shapes that were bound, tied names one tensor.
    """

    def __init__(self, identity: Identity, seq: int, tensors: dict[str, torch.Tensor], release: Callable[[], None]) -> None:
        self.version = identity.version
        self.publication = str(identity.publication)
        self.tensors = tensors
        self.seq = seq
        self._release: Callable[[], None] | None = release
        self._taken_at = "".join(traceback.format_list(traceback.extract_stack(limit=6)[:-2]))

    def release(self) -> None:
        """End the lease; idempotent. Tensors that were kept stay readable."""
        release, self._release = self._release, None
        if release is not None:
            self.tensors = {}
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_release", None) is not None:
            text = f"the lease of version {self.version} was never released; it was taken at\n{self._taken_at}"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            self.release()

    def __repr__(self) -> str:
        state = "leased" if self._release is not None else "released"
        return f"Update(version={self.version}, publication={self.publication}, {state})"
