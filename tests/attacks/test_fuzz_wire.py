"""A few thousand inputs of the fuzzer for each thing that is decoded; by hand it runs for hours."""

import pytest

from tests.attacks import fuzz_wire
from tests.attacks.fuzz_wire import Target, fuzz, targets

INPUTS = 3000


@pytest.mark.parametrize("name", sorted(targets()))
def test_mutated_bytes_are_refused_by_name(name: str) -> None:
    outcomes = fuzz(name, INPUTS, seed=7)
    assert sum(outcomes.values()) == INPUTS
    assert outcomes["accepted"] < INPUTS / 2


@pytest.mark.parametrize("name", ["messages", "leases", "chain", "welcome"])
def test_samples_are_accepted_as_they_are(name: str) -> None:
    outcomes = fuzz(name, len(targets()[name].samples))
    assert outcomes.keys() <= {"accepted", "busy"}, "one of the samples is a refusal"
    assert outcomes["accepted"]


def test_a_bug_is_found_with_its_input_and_so_is_growing_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = list[bytes]()

    def fails(raw: bytes) -> None:
        if len(raw) % 7 == 3:
            raise ValueError("a bug")

    def grows(raw: bytes) -> None:
        kept.append(raw * 1000)

    found = {"fails": Target(fails, [b"sample"]), "grows": Target(grows, [b"sample"])}
    monkeypatch.setattr(fuzz_wire, "targets", lambda: found)
    monkeypatch.setattr(fuzz_wire, "MOST_GROWTH_BYTES", 1 << 20)
    with pytest.raises(AssertionError, match=r"ValueError.*a bug.* for [0-9a-f]+$"):
        fuzz("fails", INPUTS)
    with pytest.raises(AssertionError, match="bytes more are resident"):
        fuzz("grows", INPUTS)


def test_the_same_seed_makes_the_same_inputs() -> None:
    assert fuzz("messages", 1000, seed=7) == fuzz("messages", 1000, seed=7)
    assert fuzz("messages", 1000, seed=7) != fuzz("messages", 1000, seed=8)
