"""What the benchmark of real daemons makes of their event logs."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "real_rounds.py"


@pytest.fixture(scope="module")
def real_rounds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_rounds", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["real_rounds"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def event(time: float, kind: str, **fields: object) -> dict[str, object]:
    return {"time": time, "event": kind, **fields}


def test_the_trigger_is_late_by_what_lies_between_the_last_pass_and_the_call(
    real_rounds: ModuleType,
) -> None:
    founder = [
        event(1.0, "counted", head="a", sequences=8),
        event(2.0, "counted", head="a", sequences=16),
        event(2.75, "asked", head="a"),
        event(2.76, "asked", head="a"),
        event(3.0, "ringing", head="a"),
        event(4.0, "counted", head="b", sequences=8),
    ]
    joiner = [
        event(1.5, "counted", head="a", sequences=8),
        event(3.5, "ringing", head="a"),
    ]
    first, second = real_rounds.rounds_of([founder, joiner], 24, since=0.0)
    assert first.late_s == pytest.approx(0.75)
    assert first.forming_s == pytest.approx(0.75)
    assert second.reached is None
    assert second.late_s is None


def test_who_is_named_and_who_found_too_little(real_rounds: ModuleType) -> None:
    log = [
        event(1.0, "ring-broken", suspect="p2", reason="timeout"),
        event(2.0, "attempt-ended", reason="early"),
        event(3.0, "attempt-ended", reason="superseded"),
        event(4.0, "exchange-judged", ways=[["p1", "p2"]]),
        event(5.0, "round", round=2),
        event(7.5, "round", round=3),
    ]
    assert real_rounds.named_at(log, "p2", since=0.5) == [1.0, 4.0]
    assert real_rounds.named_at(log, "p3", since=0.5) == []
    assert real_rounds.found_short(log, since=0.0) == 1
    assert real_rounds.found_short(log, since=2.5) == 0
    assert real_rounds.median_gap(real_rounds.commits(log)) == 2.5
    assert math.isnan(real_rounds.median_gap([1.0]))


def test_an_all_reduce_is_one_trigger_whoever_tells_of_it(real_rounds: ModuleType) -> None:
    one = {"head": "a", "ballot": "1 p1 00"}
    founder = [
        event(0.5, "ringing", head="z", ballot="7 p1 00", sequences=24),
        event(1.0, "ringing", **one, sequences=24),
        event(2.0, "ringing", head="b", ballot="1 p1 00", sequences=23),
    ]
    joiner = [event(1.1, "ringing", **one, sequences=24)]
    assert real_rounds.triggers([founder, joiner], since=0.75) == [24, 23]
