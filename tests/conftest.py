"""Settings of all tests: no test reads or writes the user's home, and PyTorch has one thread."""

import gc
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# Read when gRPC is imported. Its handlers start threads in a forked child, before the program in
# it begins: three in a hundred daemons that a test started died of it (grpc/grpc#43055).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

PEER_ID = "12D3Koo"
"""How each begins."""

# A busy machine is slow at any line: no example fails for the time that it took.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a parameter by its argument and place: bytes, keys and peer ids differ in each process,
    but every worker has to know a test by the same name."""
    drawn = isinstance(val, bytes) or (isinstance(val, str) and PEER_ID in val)
    return argname if drawn else None


def pytest_collection_finish() -> None:
    """Freeze imported objects: repeated garbage collection over them took a tenth of the time of
    tests that make many objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Daemons started by tests inherit them: profiles measured by one are there for the next, and
    so is bytecode, without which each start compiles all of Atom."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("own")))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only lose by being shared out, and other tests want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
