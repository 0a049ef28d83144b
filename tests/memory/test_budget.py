from __future__ import annotations

import threading

from wtransport.memory.budget import MemoryBudget


def test_uses_are_counted_apart_and_the_peak_together() -> None:
    budget = MemoryBudget()
    budget.add("slots", 100)
    budget.add("snapshots", 50)
    budget.remove("slots", 100)
    budget.add("quarantined", 10)
    assert budget.mapped("slots") == 0
    assert budget.mapped("snapshots") == 50
    assert (budget.nbytes, budget.peak_nbytes) == (60, 150)


def test_a_finalizer_may_give_back_while_another_call_counts() -> None:
    budget = MemoryBudget()
    with budget._lock:
        budget.remove("slots", 5)
    assert budget.mapped("slots") == -5


def test_threads_lose_nothing() -> None:
    budget = MemoryBudget()

    def churn() -> None:
        for _ in range(2000):
            budget.add("slots", 3)
            budget.remove("slots", 3)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.nbytes == 0
    assert 3 <= budget.peak_nbytes <= 12
