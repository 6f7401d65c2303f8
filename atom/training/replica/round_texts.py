"""What the weights write, for people to read.

A text grows a token at a time, each between two passes, on the worker's thread. It only reads, so
training keeps its bits. Whatever the round asks for comes first: a freeze waits for one token at
most, and the text goes on after the step, with the new weights. The passes of this peer wait
meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atom.base.clock import Clock
from atom.base.printable import printable
from atom.models.sampling import Sampling, continuations
from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided
from atom.swarm.records.lease import MAX_SAMPLE_BYTES, SampleText
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.replica import Replica
from atom.training.replica.worker import Worker

MOST_TOKENS = 32
"""Of a text, beside its prompt."""
_TEMPERATURE = 0.8


@dataclass(frozen=True)
class Prompts:
    """How the texts begin, which take turns, and what their tokens mean."""

    every_rounds: int
    tokens: Sequence[Sequence[int]]
    window: int
    """Tokens that the model is asked about at a time."""
    vocabulary: int
    ends: frozenset[int]
    """Tokens that end a text."""
    decode: Callable[[Sequence[int]], str]


class RoundTexts:
    """On the worker's thread."""

    def __init__(
        self,
        prompts: Prompts | None,
        replica: Replica,
        worker: Worker,
        clock: Clock,
        on_text: Callable[[SampleText, float], None],
    ) -> None:
        """`prompts`: None for no texts. `on_text`: hears of each, and of the seconds it took."""
        self._prompts = prompts
        self._replica = replica
        self._worker = worker
        self._clock = clock
        self._on_text = on_text
        self._round = 0
        """Whose weights write now."""
        self._begun = 0
        """With whose weights the text began."""
        self._text: list[int] = []
        self._begins_with = 0
        self._coming: Iterator[Mapping[int, int]] | None = None
        """None: no text is under way."""
        self._queued = False
        """Its next token is among the worker's commands."""
        self._spent_s = 0.0

    def round_settled(self) -> None:
        """All that follows the replica's latest step is done: goes on with a text, or begins one if
        it is due."""
        prompts, self._round = self._prompts, self._replica.round
        if prompts is not None and self._coming is None and self._round % prompts.every_rounds == 0:
            self._begin(prompts, self._round)
        if not self._queued:
            self._go_on()

    def _begin(self, prompts: Prompts, number: int) -> None:
        turn = number // prompts.every_rounds % len(prompts.tokens)
        self._begun, self._text, self._spent_s = number, list(prompts.tokens[turn]), 0.0
        self._begins_with = len(self._text)
        self._coming = continuations(
            [self._text],
            MOST_TOKENS,
            prompts.window,
            prompts.vocabulary,
            prompts.ends,
            Sampling(_TEMPERATURE, seed=number),
            lambda questions: self._replica.answers(questions, self._worker.should_stop),
        )

    def _go_on(self) -> None:
        coming, self._queued = self._coming, False
        if coming is None or not self._worker.is_free or self._replica.round != self._round:
            return
        told = self._next(coming)
        if told:
            self._text.append(told[0])
            self._queued = True
            self._worker.submit(self._go_on)
            return
        assert self._prompts is not None
        self._coming = None
        if len(self._text) > self._begins_with:
            text = shown(self._prompts.decode(self._text))
            self._on_text(SampleText(self._begun, text), self._spent_s)

    def _next(self, coming: Iterator[Mapping[int, int]]) -> Mapping[int, int] | None:
        """The next token; None: there is none, or it cannot be had now."""
        started = self._clock.now()
        try:
            return next(coming, None)
        except (PassCancelled, DeviceTaken, PassVoided):
            return None
        finally:
            self._spent_s += self._clock.now() - started


def shown(text: str) -> str:
    """In one line, bounded, without what a terminal would obey."""
    line = printable(text.replace("\n", "↵")).encode()
    return line[:MAX_SAMPLE_BYTES].decode(errors="ignore")
