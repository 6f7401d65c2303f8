"""A few thousand inputs of the fuzzer for each thing that is decoded; by hand it runs for hours."""

import pytest

from tests.attacks.fuzz_wire import fuzz, targets

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
