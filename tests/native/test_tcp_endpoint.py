"""Both ends of a TCP endpoint in one process: bytes, digests, ledgers, refusals, ends."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.native.support import CODES, events, packed, region_of, settle, table
from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.scripts import Outcome

_KEY, _GENERATION, _EPOCH = 7, 3, 1
_BROKEN = 2


def socket_pairs(count: int) -> tuple[list[int], list[int]]:
    """Connect TCP sockets over loopback; whoever gets the descriptors owns them."""
    near, far = [], []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(count):
            near.append(socket.create_connection(listener.getsockname()).detach())
            far.append(listener.accept()[0].detach())
    return near, far


Pair = tuple[_native.TcpSender, _native.TcpReceiver]


@pytest.fixture
def pair(engine: _native.Engine, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """An endpoint over two sockets."""
    near, far = socket_pairs(2)
    receiver = _native.TcpReceiver(engine, far, _EPOCH)
    sender = _native.TcpSender(engine, near, _EPOCH)
    yield sender, receiver
    sender.abort()
    sender.close()
    receiver.close()
    # Eventfds live as long as the objects, which pytest would keep beyond the look for leaks.
    del request.node.funcargs["pair"]


def _tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(300, 200, generator=generator).T,
        torch.randint(-100, 100, (1 << 20,), dtype=torch.int8, generator=generator),
        torch.randn(1, generator=generator).to(torch.bfloat16),
        torch.randn(64, 64, generator=generator)[:, ::2],
    ]


def test_a_write_and_a_read_agree_with_the_memory(engine: _native.Engine, pair: Pair) -> None:
    sender, receiver = pair
    tensors = _tensors()
    spans = packed(tensors)
    nbytes = int(spans[:, 3].sum())
    shared = _native.SharedRegion.create(nbytes)
    receiver.grant(_KEY, shared, _GENERATION, True, len(tensors))
    write = settle(engine, sender.write(region_of(tensors), _KEY, _GENERATION, spans, len(tensors), _native.DIGEST))
    assert (write.code(), write.progress(), write.detail()) == (0, nbytes, "")
    expected = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)
    assert bytes(shared.view()) == expected
    digests, stored = receiver.ledger(_KEY)
    assert digests.tolist() == write.digests().tolist()
    assert stored.tolist() == spans[:, 3].tolist()
    assert stored.dtype == np.int64

    copies = [torch.zeros_like(t) for t in tensors]
    read = settle(engine, sender.read(region_of(copies), _KEY, _GENERATION, spans, len(tensors), _native.DIGEST))
    assert read.code() == 0
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    assert read.digests().tolist() == digests.tolist()
    receiver.reset_ledger(_KEY)
    assert receiver.ledger(_KEY)[1].tolist() == [0] * len(tensors)
    shared.close()


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 300, 10_000])
def test_any_number_of_spans(engine: _native.Engine, pair: Pair, count: int) -> None:
    sender, receiver = pair
    source = torch.arange(max(count, 1), dtype=torch.int64)
    target = torch.full_like(source, -1)
    receiver.grant(_KEY, region_of([target]), _GENERATION, True, 1)
    spans = table(*((0, 8 * i, 8 * (count - 1 - i), 8, 0, 8 * i) for i in range(count)))
    work = settle(engine, sender.write(region_of([source]), _KEY, _GENERATION, spans, 1, _native.DIGEST))
    assert (work.code(), work.progress()) == (0, 8 * count)
    assert target[:count].tolist() == list(reversed(range(count)))
    assert receiver.ledger(_KEY)[0].tolist() == work.digests().tolist()
    receiver.revoke(_KEY)


def test_what_was_not_granted_is_refused_and_the_endpoint_goes_on(engine: _native.Engine, pair: Pair) -> None:
    sender, receiver = pair
    data = torch.ones(1 << 20, dtype=torch.uint8)
    shared = _native.SharedRegion.create(data.numel())
    source, spans = region_of([data]), packed([data])

    def write(key: int, generation: int, rows: object = spans) -> str:
        work = settle(engine, sender.write(source, key, generation, rows, 1, 0))  # type: ignore[arg-type]
        assert (work.code() == 0) == (work.detail() == "")
        return next(name for name, code in CODES.items() if code == work.code())

    receiver.grant(_KEY, shared, _GENERATION, True, 1)
    receiver.grant(_KEY + 1, shared, _GENERATION, False, 1)
    assert write(99, _GENERATION) == "STALE"
    assert write(_KEY, _GENERATION - 1) == "STALE"
    assert write(_KEY + 1, _GENERATION) == "BOUNDS"
    assert bytes(shared.view()) == bytes(data.numel())
    assert write(_KEY, _GENERATION, table((0, 0, 1, data.numel(), 0, 0))) == "BOUNDS"
    assert receiver.refused() >= 4
    assert write(_KEY, _GENERATION) == "OK"
    shared.generation += 1
    assert write(_KEY, _GENERATION) == "STALE"
    receiver.grant(_KEY, shared, _GENERATION + 1, True, 1)
    assert write(_KEY, _GENERATION + 1) == "OK"
    receiver.revoke(_KEY)
    assert write(_KEY, _GENERATION + 1) == "STALE"
    with pytest.raises(KeyError, match="no grant of key 7"):
        receiver.ledger(_KEY)
    with pytest.raises(KeyError, match="no grant of key 7"):
        receiver.reset_ledger(_KEY)
    assert sender.alive()
    assert receiver.alive()
    shared.close()


def test_works_of_several_threads_run_at_once(engine: _native.Engine, pair: Pair) -> None:
    sender, receiver = pair
    size = 300_000
    sources = [torch.randint(0, 255, (size,), dtype=torch.uint8) for _ in range(12)]
    shared = _native.SharedRegion.create(size * len(sources))
    receiver.grant(_KEY, shared, _GENERATION, True, len(sources))
    works: dict[int, _native.Work] = {}

    def submit(first: int) -> None:
        for i in range(first, len(sources), 3):
            spans = table((0, 0, size * i, size, i, 0))
            works[i] = sender.write(region_of([sources[i]]), _KEY, _GENERATION, spans, len(sources), _native.DIGEST)

    threads = [threading.Thread(target=submit, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.close()
    assert all(work.settled() and work.code() == 0 for work in works.values())
    assert bytes(shared.view()) == b"".join(source.numpy().tobytes() for source in sources)
    digests, _ = receiver.ledger(_KEY)
    assert digests.tolist() == [int(works[i].digests()[i]) for i in range(len(sources))]
    shared.close()


def test_each_end_hears_of_the_other_ends_close(engine: _native.Engine) -> None:
    near, far = socket_pairs(2)
    receiver = _native.TcpReceiver(engine, far, _EPOCH)
    sender = _native.TcpSender(engine, near, _EPOCH)
    assert receiver.id != sender.id
    assert sender.status() == (0, "")
    sender.close()
    assert next(events(engine)) == (_BROKEN, receiver.id, CODES["CLOSED"], 0)
    assert receiver.status() == (CODES["CLOSED"], "the peer closed its end")
    assert not receiver.alive()
    receiver.close()
    assert engine.drain() == []
    data = torch.ones(8)
    late = sender.write(region_of([data]), _KEY, _GENERATION, packed([data]), 1, 0)
    assert (late.settled(), late.code()) == (True, CODES["CLOSED"])
    with pytest.raises(ValueError, match="the peer closed its end"):
        receiver.grant(_KEY, region_of([data]), _GENERATION, True, 1)


def test_sockets_are_owned_also_by_a_constructor_that_fails(engine: _native.Engine) -> None:
    with pytest.raises(ValueError, match="at least one socket"):
        _native.TcpSender(engine, [], _EPOCH)
    with pytest.raises(ValueError, match="at least one socket"):
        _native.TcpReceiver(engine, [], _EPOCH)
    near, far = socket_pairs(1)
    receiver = _native.TcpReceiver(engine, far, _EPOCH)
    del receiver
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(far[0])
    os.close(near[0])


def test_a_forked_child_leaves_the_endpoint_alone(run_python: Callable[..., Outcome]) -> None:
    def program() -> None:
        import os
        import signal

        import torch

        from tests.native.support import packed, region_of, settle
        from tests.native.test_tcp_endpoint import socket_pairs
        from wtransport import _native

        engine = _native.Engine(1)
        near, far = socket_pairs(2)
        receiver = _native.TcpReceiver(engine, far, 1)
        sender = _native.TcpSender(engine, near, 1)
        heart = _native.Heart(engine, 0.05, 30.0)
        data, target = torch.ones(1 << 20), torch.zeros(1 << 20)
        receiver.grant(1, region_of([target]), 1, True, 1)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            assert not sender.alive()
            sender.close()
            receiver.abort()
            heart.close()
            return  # an ordinary exit, with finalisation
        assert os.waitpid(child, 0)[1] == 0
        assert settle(engine, sender.write(region_of([data]), 1, 1, packed([data]), 1, 0)).code() == 0
        sender.close()
        receiver.close()
        assert torch.equal(data, target)
        print("parent done")

    outcome = run_python(program)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "parent done\n", "")
