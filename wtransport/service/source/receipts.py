"""Receipts: what became of a put, as its user is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wtransport.errors import UndeliveredError
from wtransport.session.outcomes import BehindOutcome, Delivered, Excluded, Lost, Outcome, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wtransport.config import TransportConfig
    from wtransport.service.source.plans import Digests
    from wtransport.service.source.putrecord import PutRecord
    from wtransport.session import actions as act
    from wtransport.weights.manifest import Manifest


def undelivered(receipt: Receipt, config: TransportConfig) -> UndeliveredError | None:
    """What a put's settings say against its outcomes, if anything."""
    if receipt.noop:
        return None
    late = {name: outcome for name, outcome in receipt.outcomes.items() if isinstance(outcome, BehindOutcome)}
    stuck = {name: outcome for name, outcome in receipt.outcomes.items() if isinstance(outcome, Lost) and outcome.cause.code == "deadline"}
    if config.straggler == "raise" and (late or stuck):
        named = [f"{name}: {outcome.reason}" for name, outcome in sorted(late.items())]
        named += [f"{name}: {outcome.cause.message}" for name, outcome in sorted(stuck.items())]
        text = f"version {receipt.version} was not taken by {len(named)} generator(s) in time: {'; '.join(named[:5])}"
        first = min([*late, *stuck])
        return UndeliveredError(text, receipt=receipt, peer=first, version=receipt.version, phase="put", hint="the version stands")
    if len(receipt.delivered) < config.min_delivered:
        others = ", ".join(f"{name} {outcome.name}" for name, outcome in sorted(receipt.outcomes.items()) if outcome.name != "delivered")
        text = f"version {receipt.version} reached {len(receipt.delivered)} generator(s), min_delivered={config.min_delivered}"
        hint = f"the version stands; the others: {others}" if others else "the version stands; no other generator is in the job"
        return UndeliveredError(text, receipt=receipt, version=receipt.version, phase="put", hint=hint)
    return None


def told(outcome: Outcome) -> str:
    """An outcome and its reason, for people."""
    reason = outcome.cause.message if isinstance(outcome, Lost) else getattr(outcome, "reason", "")
    return f"{outcome.name}: {reason}" if reason else outcome.name


class Receipts:
    """Makes receipts; remembers the digests of the version put last, to count what changed since."""

    def __init__(self) -> None:
        self._last: tuple[Manifest, Digests] | None = None

    def make(self, record: PutRecord, action: act.PutDone, excluded: Iterable[str], now: float) -> Receipt:
        """The receipt of a put that ended well; *excluded* are the names that are out of the job."""
        outcomes: dict[str, Outcome] = {}
        for member, outcome in action.outcomes.items():
            name = record.names.get(member, member[:8])
            outcomes[name] = Delivered(record.nbytes.get(member, 0)) if isinstance(outcome, Delivered) else outcome
        for name in excluded:
            outcomes.setdefault(name, Excluded("excluded from the job; it keeps the version it holds"))
        publication = str(record.identity.publication) if record.identity is not None else ""
        nbytes = sum(outcome.nbytes for outcome in outcomes.values() if isinstance(outcome, Delivered))
        changed = 0 if action.noop else self._changed(record)
        return Receipt(record.version, publication, nbytes, now - record.started, outcomes, changed, action.noop)

    def _changed(self, record: PutRecord) -> int | None:
        before, self._last = self._last, None if record.own is None else (record.manifest, record.own)
        if record.own is None or before is None:
            return None
        if before[0] == record.manifest:
            return int(np.count_nonzero(before[1] != record.own))
        old = {meta.name: before[1][meta.storage] for meta in before[0].canonical}
        return sum(1 for meta in record.manifest.canonical if old.get(meta.name) != record.own[meta.storage])
