"""What a finished run showed, and whether that is what it should have shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from wtransport.demo.spec import RANDOM_REWARD

if TYPE_CHECKING:
    from wtransport.demo.progress import Progress
    from wtransport.demo.reports import Finished, Judged

# Three standard deviations of the score of a policy that guesses 256 answers of 8 digits.
_NOISE = 0.02


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run in figures.

    Attributes:
        seconds: Time of training.
        num_parameters: Trained numbers of the policy.
        nbytes_version: Bytes of one version.
        steps: Steps of the trainer.
        versions: Versions put.
        samples: Answers trained on.
        random_reward: Mean reward of guessing.
        reward_before: On held-out prompts, greedy, with the first version a generator was shown.
        reward_after: The same with the last version.
        exact_before: Share of held-out answers right in full, first version.
        exact_after: The same, last version.
        staleness_mean: Version trained on minus version sampled with.
        staleness_max: The same, most.
        outcomes: Deliveries by outcome.
        shown: Versions each generator was shown.
        batches_verified: Batches drawn with the very bytes that the trainer had put.
        ends_verified: Generators that ended with the very bytes of the trainer's last version.
        nbytes_moved: Bytes written by all puts.
        put_gbps: GB/s of the last puts.
        recorder: Folder of the flight records.
        problems: What should have been otherwise, one sentence each.
    """

    seconds: float
    num_parameters: int
    nbytes_version: int
    steps: int
    versions: int
    samples: int
    random_reward: float
    reward_before: float | None
    reward_after: float | None
    exact_before: float | None
    exact_after: float | None
    staleness_mean: float | None
    staleness_max: int | None
    outcomes: dict[str, int]
    shown: dict[str, int]
    batches_verified: int
    ends_verified: int
    nbytes_moved: int
    put_gbps: float | None
    recorder: str | None
    problems: tuple[str, ...]

    @classmethod
    def of(cls, progress: Progress, recorder: str | None) -> Self:
        """Sum up a run that is over and left its flight records in *recorder*."""
        steps, started = progress.steps, progress.started
        first = min((it for it in progress.judged if not it.final), key=_version, default=None)
        last = max((it for it in progress.judged if it.final), key=_version, default=None)
        staleness = [step.staleness for step in steps]
        return cls(
            seconds=progress.elapsed_s,
            num_parameters=started.num_parameters if started else 0,
            nbytes_version=started.nbytes if started else 0,
            steps=len(steps),
            versions=progress.version,
            samples=progress.samples,
            random_reward=RANDOM_REWARD,
            reward_before=first.reward if first else None,
            reward_after=last.reward if last else None,
            exact_before=first.exact if first else None,
            exact_after=last.exact if last else None,
            staleness_mean=sum(staleness) / len(staleness) if staleness else None,
            staleness_max=max(staleness, default=None),
            outcomes=dict(progress.outcomes),
            shown=dict(progress.shown),
            batches_verified=sum(step.intact for step in steps),
            ends_verified=sum(_is_same(it, progress.finished) for it in progress.judged if it.final),
            nbytes_moved=progress.nbytes,
            put_gbps=progress.put_gbps,
            recorder=recorder,
            problems=tuple(_problems(progress, first, last)),
        )


def _is_same(judged: Judged, finished: Finished | None) -> bool:
    return finished is not None and (judged.version, judged.checksum) == (finished.version, finished.checksum)


def _version(judged: Judged) -> int:
    return judged.version


def _problems(progress: Progress, first: Judged | None, last: Judged | None) -> list[str]:
    found = [f"{failure.process} failed: {failure.error.strip().splitlines()[-1]}" for failure in progress.failures]
    found += [f"version {step.version - 1 - step.staleness} was not what the trainer had put" for step in progress.steps if not step.intact]
    for name in ("lost", "excluded"):
        if count := progress.outcomes[name]:
            found.append(f"{count} deliveries ended as {name}")
    if progress.finished is None:
        return [*found, "the last version was not put"]
    ends = {judged.generator: judged for judged in progress.judged if judged.final}
    for name in progress.generators:
        if name not in ends:
            found.append(f"{name} never held the last version")
        elif not _is_same(ends[name], progress.finished):
            found.append(f"{name} holds other bytes than the trainer as the last version")
    if first is None or last is None or last.reward <= first.reward + _NOISE:
        found.append("the reward did not rise")
    return found
