"""Fixtures of all tests of the package, which may be coroutines."""

import asyncio
import inspect
import threading
from collections import Counter

import pytest

from tests.swarm.stream_pairs import streams_end
from tests.swarm.threaded_ring import swarm_of
from tests.swarm.transport_peers import make_peer

__all__ = ["make_peer", "streams_end", "swarm_of"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own; return None for other tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    parameters = inspect.signature(pyfuncitem.function).parameters
    asyncio.run(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in parameters}))
    return True


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many threads of a name are yet to be refused."""
    left, start = Counter[str](), threading.Thread.start

    def start_if_allowed(thread: threading.Thread) -> None:
        if left[thread.name] > 0:
            left[thread.name] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    return left
