"""One optimizer step as a list of pieces: any threads may update them."""

import ctypes
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from atom.graph.ir import ParameterLayout

PIECE_ELEMENTS = 2**20
"""Elements updated per call: about a millisecond's work, which threads can share evenly."""


@dataclass(frozen=True)
class Piece:
    """What is updated at a time: elements [start, stop) of every arena, all of one parameter."""

    start: int
    stop: int
    decays: bool


class Step:
    """One optimizer step under way: a list of pieces, and which of them are done.

    Pieces lie in ascending order of their place in the arenas, which is the order of first use:
    whoever updates them in this order serves the next forward earliest. Any thread may update any
    piece; two threads must not update the same one.
    """

    def __init__(
        self,
        number: int,
        pieces: Sequence[Piece],
        update_piece: Callable[[Piece, int], None],
        threads: int = 1,
    ) -> None:
        """Made by `AdamW.begin`. `update_piece(piece, address)` sets the byte there when done.
        `threads`: the most that `update_all` starts."""
        self.number = number
        """Counts from 1."""
        self.pieces = pieces
        self._update_piece = update_piece
        elements = sum(piece.stop - piece.start for piece in pieces)
        self._threads = min(max(threads, 1), -(-elements // PIECE_ELEMENTS))
        self._done = bytearray(len(pieces))
        self._first_mark = ctypes.addressof(ctypes.c_char.from_buffer(self._done)) if pieces else 0

    def update(self, index: int) -> None:
        """Updates `pieces[index]`, unless that is done. What it raises leaves it to be done.
        Lets other threads of Python run meanwhile."""
        if not self._done[index]:
            self._update_piece(self.pieces[index], self._first_mark + index)

    def update_all(self) -> Generator[int, None, None]:
        """Updates the pieces on several threads; yields each index, ascending, when it is done.

        Whoever stops listening closes the iterator: it returns when all threads have ended, and
        so it does before it raises what an update raised.
        """
        if self._threads <= 1:
            for index in range(len(self.pieces)):
                self.update(index)
                yield index
            return
        turns, told = self._turns(), queue.SimpleQueue[int | BaseException]()
        with ThreadPoolExecutor(self._threads, "atom-adamw") as pool:
            for _ in range(self._threads):
                pool.submit(self._work, turns, told)
            try:
                yield from self._in_order(told)
            finally:
                turns.close()

    def _turns(self) -> "_Turns":
        """Of what is not done: after an interruption that is not everything."""
        return _Turns([index for index, done in enumerate(self._done) if not done])

    def _in_order(self, told: "queue.SimpleQueue[int | BaseException]") -> Iterator[int]:
        known = bytearray(self._done)
        for index in range(len(self.pieces)):
            while not known[index]:
                news = told.get()
                if isinstance(news, BaseException):
                    raise news
                known[news] = True
            yield index

    def _work(self, turns: "_Turns", told: "queue.SimpleQueue[int | BaseException]") -> None:
        try:
            while (index := turns.next()) is not None:
                self.update(index)
                told.put(index)
        except BaseException as failure:  # noqa: BLE001 - `update_all` raises it
            told.put(failure)

    def is_done(self, index: int) -> bool:
        return bool(self._done[index])

    @property
    def finished(self) -> bool:
        """Every piece is done: the store holds the next state."""
        return 0 not in self._done


class _Turns:
    """Hands out each piece once, in order. Thread-safe."""

    def __init__(self, pieces: Sequence[int]) -> None:
        self._left = iter(pieces)
        self._lock = threading.Lock()

    def next(self) -> int | None:
        """None: there is none left."""
        with self._lock:
            return next(self._left, None)

    def close(self) -> None:
        """Nothing more is handed out."""
        with self._lock:
            self._left = iter(())


def pieces_of(layout: ParameterLayout, frozen: frozenset[str]) -> Iterator[Piece]:
    """All but the `frozen` parameters, in the arenas' order; matrices decay."""
    for spec in layout.specs:
        if spec.name in frozen:
            continue
        stop = spec.offset + spec.numel
        for start in range(spec.offset, stop, PIECE_ELEMENTS):
            end = min(start + PIECE_ELEMENTS, stop)
            yield Piece(start, end, decays=len(spec.shape) >= 2)
