"""Texts between passes: written with one round's weights, without effect on training."""

import functools
from collections import deque
from collections.abc import Callable

import pytest
import torch

from atom.graph.ir import Program
from atom.graph.layers import ends_alike, layer_ends, layers_of
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.data.tokenizer import ByteTokenizer
from atom.models.gpt3 import GPT3, GPT3Source
from atom.models.sampling import MOST_TOKENS, Prompts, example_question, next_token_model
from atom.swap.device import CpuDevice
from atom.swarm.records.lease import SampleText
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.replica.round_texts import RoundTexts, shown
from tests.manual_clock import ManualClock
from tests.training.small_replica import FIRST_VALUE, RATE, batches, config

WINDOW = 4


@functools.cache
def programs() -> tuple[Program, Program]:
    """Return the programs for training and for answers."""
    graph = trace(GPT3(config(), device="meta"), batches(1, 0)[0])
    model = next_token_model(GPT3Source(config()), torch.float32)
    asked = trace(model, example_question(WINDOW), training=False, gives_loss=False)
    assert asked.layout == graph.layout
    ends = layer_ends(layers_of(graph))
    return build_program(graph, ends=ends), build_program(
        asked, ends=ends_alike(graph, asked, ends)
    )


def a_replica() -> Replica:
    training, answering = programs()
    settings = ReplicaSettings(rate=RATE)
    replica = Replica(training, None, settings, CpuDevice(), ManualClock(), answering=answering)
    replica.initialise(FIRST_VALUE)
    return replica


class Hands:
    """A worker that does its commands when it is told to."""

    def __init__(self) -> None:
        self.commands = deque[Callable[[], object]]()
        self.is_free, self.stops = True, False

    def submit(self, command: Callable[[], object]) -> None:
        self.commands.append(command)

    def should_stop(self) -> bool:
        return self.stops

    def work(self, most: int = 1000) -> int:
        done = 0
        while self.commands and done < most:
            self.commands.popleft()()
            done += 1
        return done


class Desk:
    def __init__(self) -> None:
        self.replica, self.hands, self.told = a_replica(), Hands(), list[SampleText]()
        decode = lambda tokens: "".join(chr(97 + token % 26) for token in tokens)  # noqa: E731
        size = config().vocabulary_size
        prompts = Prompts(2, [[1, 2], [3]], WINDOW, size, frozenset(), decode)
        self.texts = RoundTexts(
            prompts, self.replica, self.hands, ManualClock(), lambda text, s: self.told.append(text)
        )  # type: ignore[arg-type]

    def rounds(self, count: int, settled: bool = True) -> None:
        for _ in range(count):
            self.replica.reset_gradients()
            for batch in batches(2, self.replica.step_count):
                self.replica.run_pass([batch])
            self.replica.begin_own_step()
            self.replica.finish_step()
        if settled:
            self.texts.round_settled()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_every_nth_round_writes_and_training_keeps_its_bits(desk: Desk) -> None:
    other = Desk()
    for number in range(1, 5):
        desk.rounds(1)
        assert bool(desk.hands.commands) == (number % 2 == 0)
        desk.replica.run_pass(batches(1, 7))
        assert desk.hands.work() == (MOST_TOKENS if number % 2 == 0 else 0)
        other.rounds(1)
        other.replica.run_pass(batches(1, 7))
        sums, others = (each.replica.gradient_sums() for each in (desk, other))
        assert torch.equal(sums, others)
        digests = {state_digest(each.replica.state_arenas()) for each in (desk, other)}
        assert len(digests) == 1
    assert [text.round for text in desk.told] == [2, 4]
    assert [text.text[:1] for text in desk.told] == ["d", "b"], "prompts take turns"
    assert all(len(text.text) in (MOST_TOKENS + 1, MOST_TOKENS + 2) for text in desk.told)


@pytest.mark.parametrize("why", ["frozen", "stepped"])
def test_a_text_waits_for_a_round_and_goes_on_after_it(desk: Desk, why: str) -> None:
    desk.rounds(2)
    assert desk.hands.work(3) == 3
    if why == "frozen":
        desk.hands.is_free = False
    else:
        desk.rounds(1, settled=False)
    assert desk.hands.work() == 1
    assert not desk.told
    desk.hands.is_free = True
    for _ in range(2):  # another one is due: the one under way comes first
        desk.rounds(1)
        assert len(desk.hands.commands) == 1, "a step between two tokens doubles no text"
    desk.hands.work()
    assert [(text.round, len(text.text)) for text in desk.told] == [(2, MOST_TOKENS + 1)]


def test_a_pass_that_is_cancelled_ends_a_text_where_it_is(desk: Desk) -> None:
    desk.rounds(2)
    assert desk.hands.work(3) == 3
    desk.hands.stops = True
    assert desk.hands.work() == 1
    assert [len(text.text) for text in desk.told] == [5], "one prompt token, and four written"


def test_a_text_that_is_due_waits_for_a_free_moment(desk: Desk) -> None:
    desk.hands.is_free = False
    desk.rounds(2)
    assert desk.hands.work() == 0
    desk.hands.is_free = True
    desk.rounds(1)
    desk.hands.work()
    assert [text.round for text in desk.told] == [2]


def test_weights_that_give_no_numbers_write_nothing(desk: Desk) -> None:
    desk.replica.initialise(lambda name, shape: torch.full(shape, float("nan")))
    desk.texts.round_settled()
    assert desk.hands.work() == 0
    assert not desk.told


def test_a_text_is_shown_in_one_bounded_harmless_line() -> None:
    coder = ByteTokenizer()
    assert shown(coder.decode(b"a\nb\x1b[2J\xff")) == "a↵b�[2J�"
    assert shown("\u202eab") == "�ab"
    assert shown("x" * 1000) == "x" * 320
    assert shown("é" * 1000) == "é" * 160
    assert shown("x" + "é" * 1000) == "x" + "é" * 159, "half a sign is none"
    assert shown("x").isprintable()
