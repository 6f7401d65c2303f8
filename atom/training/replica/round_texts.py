"""Sample texts that the model writes during training, for people to read.

Each token of a text is generated between two passes, on the worker's thread. Generation changes no
state, so training stays bit-identical. Tasks of the round come first: a freeze waits for at most
one token, and the text continues after the step, with the new weights. The passes of this peer wait
while a token is generated.
"""

from collections.abc import Callable, Iterator, Mapping

from atom.base.clock import Clock
from atom.base.units import printable
from atom.models.sampling import MOST_TOKENS, Prompts, Sampling, continuations
from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided
from atom.swarm.records.lease import MAX_SAMPLE_BYTES, SampleText
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.replica import Replica
from atom.training.replica.worker import Worker

_TEMPERATURE = 0.8


class RoundTexts:
    """Generator of sample texts. Used on the worker's thread."""

    def __init__(
        self,
        prompts: Prompts | None,
        replica: Replica,
        worker: Worker,
        clock: Clock,
        on_text: Callable[[SampleText, float], None],
    ) -> None:
        """Begin without a text.

        Args:
            prompts: Prompts; None: write no texts.
            replica: Model that writes.
            worker: Thread that generates the tokens.
            clock: Time source.
            on_text: Receives each finished text, and the seconds that it took.
        """
        self._prompts = prompts
        self._replica = replica
        self._worker = worker
        self._clock = clock
        self._on_text = on_text
        self._round = 0
        """Round of the current weights."""
        self._begun = 0
        """Round of the weights with which the text began."""
        self._text: list[int] = []
        self._begins_with = 0
        self._coming: Iterator[Mapping[int, int]] | None = None
        """Source of the next tokens; None: no text is being written."""
        self._queued = False
        """True if a command for the next token waits in the worker's queue."""
        self._spent_s = 0.0

    def round_settled(self) -> None:
        """Continue a text, or begin one if it is due, when all tasks after a step are done."""
        prompts, self._round = self._prompts, self._replica.step_count
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
        if coming is None or not self._worker.is_free or self._replica.step_count != self._round:
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
        """Return the next token; None: the text has ended, or the pass failed."""
        started = self._clock.now()
        try:
            return next(coming, None)
        except (PassCancelled, DeviceTaken, PassVoided):
            return None
        finally:
            self._spent_s += self._clock.now() - started


def shown(text: str) -> str:
    """Return the text as one line of limited length, without terminal control characters."""
    line = printable(text.replace("\n", "↵")).encode()
    return line[:MAX_SAMPLE_BYTES].decode(errors="ignore")
