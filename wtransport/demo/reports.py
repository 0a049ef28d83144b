"""What the processes of a run tell the one that shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgpack

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


@dataclass(frozen=True)
class Started:
    """The trainer has connected.

    Attributes:
        num_parameters: Trained numbers of the policy.
        nbytes: Bytes of one version.
    """

    num_parameters: int
    nbytes: int


@dataclass(frozen=True)
class Stepped:
    """The trainer learnt from a batch.

    Attributes:
        version: The version it made.
        reward: Share of right digits in the batch.
        exact: Share of answers right in full.
        entropy: Of the policy, nats a digit.
        staleness: Version trained on minus version sampled with.
        samples: Answers in the batch.
        elapsed_s: Since the first batch came.
        intact: Whether the generator had read the very bytes that this process put.
    """

    version: int
    reward: float
    exact: float
    entropy: float
    staleness: int
    samples: int
    elapsed_s: float
    intact: bool


@dataclass(frozen=True)
class Delivery:
    """The receipt of one put.

    Attributes:
        version: The version put.
        nbytes: Bytes written, over all generators.
        seconds: From the call to the last outcome.
        outcomes: One word for each generator.
    """

    version: int
    nbytes: int
    seconds: float
    outcomes: dict[str, str]


@dataclass(frozen=True)
class Followed:
    """A generator was shown a version."""

    generator: str
    version: int


@dataclass(frozen=True)
class Judged:
    """A generator answered the held-out prompts.

    Attributes:
        generator: Its name.
        version: The version it answered with.
        reward: Share of right digits.
        exact: Share of answers right in full.
        checksum: Of the weights it answered with.
        final: Whether this was the last version of the run.
    """

    generator: str
    version: int
    reward: float
    exact: float
    checksum: int
    final: bool


@dataclass(frozen=True)
class Finished:
    """The trainer's last version has been put; *checksum* is of its own weights."""

    version: int
    checksum: int


@dataclass(frozen=True)
class Failed:
    """A process gave up."""

    process: str
    error: str


Report = Started | Stepped | Delivery | Followed | Judged | Finished | Failed
_KINDS: tuple[type[Report], ...] = (
    Started,
    Stepped,
    Delivery,
    Followed,
    Judged,
    Finished,
    Failed,
)


def send(connection: Connection, report: Report) -> None:
    """Send one report."""
    connection.send_bytes(msgpack.packb([_KINDS.index(type(report)), asdict(report)]))


def receive(connection: Connection) -> Report:
    """Receive the next one.

    Raises:
        EOFError: If the other process has ended.
    """
    kind, fields = msgpack.unpackb(connection.recv_bytes())
    report: Report = _KINDS[kind](**fields)
    return report
