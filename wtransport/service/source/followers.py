"""What the generators that follow a trainer want: a put that fits none of them is refused before anything moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wtransport.errors import ManifestMismatchError
from wtransport.weights.manifest import Manifest
from wtransport.weights.mismatch import check_wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wtransport.session.identity import MemberId

_INLINE_TENSORS = 1000
_LISTED = 5


class Followers:
    """Sinks whose binding has fitted this trainer's weights, and what they want.

    Args:
        rank: This trainer's rank.
        alone: Whether it is the only rank; of several each knows its own part only, so that a name it lacks says nothing.
    """

    def __init__(self, rank: int, *, alone: bool) -> None:
        self._rank = rank
        self._alone = alone
        self._wanted: dict[MemberId, Manifest | None] = {}

    def follows(self, sink: MemberId, wanted: Manifest) -> None:
        """The sink's binding fits what is put."""
        self._wanted[sink] = wanted

    def bound_anew(self, sink: MemberId) -> None:
        """What a follower wants now is not known until its new binding has fitted: it may be ahead of the trainer."""
        if sink in self._wanted:
            self._wanted[sink] = None

    def gone(self, sink: MemberId) -> None:
        """The sink is lost."""
        self._wanted.pop(sink, None)

    async def check(self, weights: Manifest, names: Mapping[MemberId, str], version: int) -> None:
        """Judge a manifest that has not been put before.

        Raises:
            ManifestMismatchError: If there are followers and *weights* fit none of them; a few names of each side, and who they are.
        """
        wanted: dict[bytes, Manifest] = {}
        for manifest in self._wanted.values():
            if manifest is None:
                return
            wanted[manifest.digest] = manifest
        first: ManifestMismatchError | None = None
        for manifest in wanted.values():
            if max(len(manifest), len(weights)) <= _INLINE_TENSORS:
                error = self._misfit(weights, manifest)
            else:
                error = await asyncio.to_thread(self._misfit, weights, manifest)
            if error is None:
                return
            first = first or error
        if first is not None:
            known = sorted(names.get(sink, sink[:8]) for sink in self._wanted)
            more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            text = f"the weights fit none of the generators that follow ({', '.join(known[:_LISTED])}{more}): {first.message}"
            hint = "put what they want; for other weights bind the generators anew first"
            raise ManifestMismatchError(text, tensor=first.tensor, version=version, phase="put", hint=hint) from first

    def _misfit(self, weights: Manifest, wanted: Manifest) -> ManifestMismatchError | None:
        if not self._alone:
            held = weights.by_name
            wanted = Manifest(tuple(meta for meta in wanted.tensors if meta.name in held))
        try:
            check_wanted([weights], [[self._rank]], wanted, allow_extra=False)
        except ManifestMismatchError as error:
            return error
        return None
