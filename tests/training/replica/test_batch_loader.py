"""Which samples a peer draws, from one round to the next."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.models.data.sampler import Sampler
from atom.training.replica.worker import BatchLoader

MEMBERS = ("a", "b", "c")
MICRO_BATCH = 2


def head(cursor: int, members: tuple[str, ...] = MEMBERS) -> Any:
    return SimpleNamespace(cursor=cursor, members=members)


def drawn(loader: BatchLoader, micro_batches: int) -> list[int]:
    return [int(place) for batch in loader.draw(micro_batches) for place in batch["tokens"]]


@pytest.fixture
def loader() -> BatchLoader:
    """Peer b's; a batch names the positions that it was drawn from."""
    samples: Any = SimpleNamespace(
        sampler=Sampler(1000, 7),
        tokens_per_sample=16,
        batch=lambda positions: {"tokens": torch.tensor(positions)},
    )
    loader = BatchLoader(samples, "b", MICRO_BATCH)
    loader.deal(head(0))
    return loader


def test_a_round_is_dealt_from_its_first_on(loader: BatchLoader) -> None:
    assert drawn(loader, 2) == [1, 4, 7, 10]
    loader.deal(head(30))
    assert drawn(loader, 1) == [31, 34]


@pytest.mark.parametrize("longest", [2, 4, 10])
def test_who_goes_on_draws_nothing_twice(loader: BatchLoader, longest: int) -> None:
    """The round took two sequences of ours, and so many of the one that gave most."""
    before = drawn(loader, 4)
    loader.deal(head(3 * longest), goes_on=True)
    assert drawn(loader, 1)[0] == max(before[-1] + 3, 3 * longest + 1)


def test_with_other_members_it_begins_beyond_what_it_drew(loader: BatchLoader) -> None:
    before = drawn(loader, 4)
    loader.deal(head(6, ("b", "c")), goes_on=True)
    after = drawn(loader, 2)
    assert after == [24, 26, 28, 30]
    assert before[-1] < after[0]


def test_a_guest_that_became_a_member_begins_with_its_first(loader: BatchLoader) -> None:
    loader.deal(head(0, ("a", "c")))
    drawn(loader, 4)
    loader.deal(head(12), goes_on=True)
    assert drawn(loader, 1) == [13, 16]
