"""A workbench on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from atom.swap.stream_events import event_of
from atom.swap.workbench import Pair, copy_all


class CudaWorkbench:
    """Three streams of its own, ordered by events.

    * Work on a place waits for `arrived[place]`, recorded behind the copies that bring it in.
    * All work is on one stream, so it may share memory.
    * Nothing is taken back before the host has waited for `worked[place]`, nor brought into a place
      before it has waited for `back[place]`: no stream has to wait for another there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            streams = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]
        self._in, self._work, self._out = streams
        self._arrived: dict[int, torch.cuda.Event] = {}
        self._worked: dict[int, torch.cuda.Event] = {}
        self._back: dict[int, torch.cuda.Event] = {}

    def bring(self, place: int, pairs: Sequence[Pair], work: Callable[[], None]) -> None:
        with self._on(self._in):
            copy_all(pairs)
            event_of(self._arrived, place).record(self._in)
        with self._on(self._work), torch.no_grad():
            self._work.wait_event(self._arrived[place])
            work()
            event_of(self._worked, place).record(self._work)

    def wait_worked(self, place: int) -> None:
        self._worked[place].synchronize()

    def take_back(self, place: int, pairs: Sequence[Pair]) -> None:
        with self._on(self._out):
            copy_all(pairs)
            event_of(self._back, place).record(self._out)

    def wait_back(self, place: int) -> None:
        self._back[place].synchronize()

    def rest(self) -> None:
        for stream in (self._in, self._work, self._out):
            stream.synchronize()

    @contextmanager
    def _on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield
