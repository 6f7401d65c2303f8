"""A few thousand inputs of the fuzzer for each thing that is decoded; by hand it runs for hours."""

import pytest

from tests.attacks import fuzz_wire
from tests.attacks.fuzz_wire import Target, fuzz, targets

INPUTS = 3000


@pytest.mark.parametrize("name", sorted(targets()))
def test_mutated_bytes_are_refused_by_name(name: str) -> None:
    outcomes = fuzz(name, INPUTS, seed=7)
    assert sum(outcomes.values()) == INPUTS
    assert outcomes == fuzz(name, INPUTS, seed=7) or name in ("hello", "records", "tls")
    assert outcomes["accepted"] < INPUTS / 2


@pytest.mark.parametrize("name", ["messages", "leases", "chain", "welcome"])
def test_samples_are_accepted_as_they_are(name: str) -> None:
    outcomes = fuzz(name, len(targets()[name].samples))
    assert outcomes.keys() <= {"accepted", "busy"}, "one of the samples is a refusal"
    assert outcomes["accepted"]


def fails(raw: bytes) -> None:
    if len(raw) % 7 == 3:
        raise ValueError("a bug")


def test_a_finding_names_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"broken": Target(fails, [b"sample"])}
    monkeypatch.setattr(fuzz_wire, "targets", lambda: broken)
    with pytest.raises(AssertionError, match=r"ValueError.*a bug.* for [0-9a-f]+$"):
        fuzz("broken", INPUTS)


def test_growing_memory_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[bytes]()
    monkeypatch.setattr(fuzz_wire, "MOST_GROWTH_BYTES", 1 << 20)
    growing = {"growing": Target(lambda raw: kept.append(raw * 1000), [b"sample"])}
    monkeypatch.setattr(fuzz_wire, "targets", lambda: growing)
    with pytest.raises(AssertionError, match="bytes more are resident"):
        fuzz("growing", INPUTS)
