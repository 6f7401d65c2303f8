"""Devices of replicas and stages of executors, closed when a test ends."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.config.peer_file import Checkpoints
from atom.swap.device import CpuDevice
from tests.training.executor_stage import NONE, Stage, a_run

NewDevice = Callable[[], CpuDevice]
NewStage = Callable[..., Stage]


@pytest.fixture
def new_stage(tmp_path: Path) -> Iterator[NewStage]:
    """Makes the stage as `a_run` says, closes it at the end, and finds no thread left."""
    before, stages = set(threading.enumerate()), list[Stage]()

    def make(keeps: Checkpoints = NONE, **run: Any) -> Stage:
        stages.append(Stage(tmp_path, a_run(**run), keeps))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
        assert stage.failures.empty(), stage.failures.get()
    assert set(threading.enumerate()) <= before


@pytest.fixture
def stage(new_stage: NewStage) -> Stage:
    return new_stage()


@pytest.fixture
def new_device() -> Iterator[NewDevice]:
    made: list[CpuDevice] = []

    def make() -> CpuDevice:
        made.append(CpuDevice())
        return made[-1]

    yield make
    for device in made:
        device.close()


@pytest.fixture
def device(new_device: NewDevice) -> CpuDevice:
    return new_device()
