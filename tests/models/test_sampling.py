"""Choice of tokens, and the model's input for each of them."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from atom.models.data.tokenizer import ByteTokenizer, tokens_of
from atom.models.gpt3 import GPT3, GPT3Config, GPT3Source, initialise
from atom.models.sampling import Sampling, choose_token, continuations, question
from atom.models.source import Batch

LOGITS = torch.tensor([0.5, 3.0, 2.0, 2.9])
"""Odds of about 3.5, 43, 16 and 39 %."""


def drawn(sampling: Sampling) -> set[int]:
    generator = torch.Generator().manual_seed(sampling.seed)
    return {choose_token(LOGITS, sampling, generator) for _ in range(400)}


def test_temperature_says_among_which_tokens() -> None:
    assert drawn(Sampling(0.0)) == {1}
    assert drawn(Sampling(1.0)) == {0, 1, 2, 3}
    assert drawn(Sampling(0.01)) == {1}


def test_odds_are_those_of_the_logits() -> None:
    generator = torch.Generator().manual_seed(3)
    taken = [choose_token(LOGITS, Sampling(1.0), generator) for _ in range(4000)]
    odds = torch.softmax(LOGITS, 0).tolist()
    for token, odd in enumerate(odds):
        assert taken.count(token) / len(taken) == pytest.approx(odd, abs=0.03)


def test_a_question_is_of_the_last_tokens_of_a_text() -> None:
    short, full, beyond = (question(range(1, n + 1), 4) for n in (2, 4, 6))
    assert short["tokens"].tolist() == [[1, 2, 0, 0]]
    assert full["tokens"].tolist() == [[1, 2, 3, 4]]
    assert beyond["tokens"].tolist() == [[3, 4, 5, 6]]
    assert [each["last"].tolist() for each in (short, full, beyond)] == [[1], [3], [3]]


def counting(batches: list[Batch]) -> list[Tensor]:
    """Model that follows each token by the next of 8 numbers, in a cycle."""
    asked = [batch["tokens"][0, batch["last"][0]] for batch in batches]
    return [torch.eye(8)[(token + 1) % 8].unsqueeze(0) * 100 for token in asked]


def told(
    prompts: list[list[int]], most: int, **more: frozenset[int] | int
) -> list[Mapping[int, int]]:
    given = {"window": 3, "vocabulary": 8, "ends": frozenset({7}), **more}
    return list(continuations(prompts, most, sampling=Sampling(), ask=counting, **given))  # type: ignore[arg-type]


def test_texts_go_on_together_until_each_has_ended() -> None:
    assert told([[1, 2, 3], [5]], 9) == [{0: 4, 1: 6}, {0: 5}, {0: 6}, {}]
    assert told([[0]], 2) == [{0: 1}, {0: 2}]
    assert told([[3]], 3, vocabulary=4, ends=frozenset()) != [{0: 4}, {0: 5}, {0: 6}]
    assert all(max(each.values()) < 4 for each in told([[3]], 9, vocabulary=4, ends=frozenset()))


def test_a_text_does_not_depend_on_its_neighbours() -> None:
    def even(batches: list[Batch]) -> list[Tensor]:
        return [torch.zeros(1, 50) for _ in batches]

    def texts(prompts: list[list[int]], seed: int) -> list[list[int]]:
        found = continuations(prompts, 20, 4, 50, frozenset(), Sampling(seed=seed), even)
        rows = list(found)
        return [[row[number] for row in rows] for number in range(len(prompts))]

    both = texts([[1], [2]], 5)
    assert texts([[1]], 5)[0] == both[0] != both[1]
    assert texts([[1]], 6)[0] != both[0]


def test_what_stands_behind_the_last_token_changes_nothing() -> None:
    source = GPT3Source(GPT3Config(2, 2, 16, sequence_tokens=8, vocabulary_size=32))
    model = GPT3(source.config)
    initialise(model, 1)
    asked = question([3, 1, 4], 8)
    filled = torch.where(torch.arange(8) > 2, 9, asked["tokens"])
    answer = source.next_logits(model)
    one, other = (answer(each, asked["last"]) for each in (asked["tokens"], filled))
    assert torch.equal(one, other)
    assert torch.allclose(one, model.logits(torch.tensor([[3, 1, 4]]))[:, -1], atol=1e-6)


def test_bytes_that_are_no_text_yet_are_shown_as_such() -> None:
    coder = ByteTokenizer()
    tokens = tokens_of(coder, "é\n")
    assert tokens == [0xC3, 0xA9, 10]
    assert coder.decode(tokens) == "é\n"
    assert coder.decode(tokens[:1]) == "�"
