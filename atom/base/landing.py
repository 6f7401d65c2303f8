"""Work on the blocks of something whose parts become final one by one: each block is worked on when
all of it has landed, so that little is left for the end."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

Found = TypeVar("Found")


class LandedBlocks(Generic[Found]):
    """What `work` finds in each block, on threads of this object's own."""

    def __init__(
        self,
        elements: int,
        block_elements: int,
        work: Callable[[int, int], Found],
        threads: int,
        name: str,
    ) -> None:
        """`work(start, stop)`: on the elements of one block; the last may be short. `name`: of the
        threads."""
        self._elements, self._size, self._work = elements, block_elements, work
        starts = range(0, elements, block_elements)
        self._missing = [min(block_elements, elements - start) for start in starts]
        self._found: list[Future[Found] | None] = [None] * len(starts)
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(max(min(threads, len(starts)), 1), name)

    def landed(self, start: int, stop: int) -> None:
        """Elements [start, stop) are final, and were not before. From any thread; does not wait."""
        with self._lock:
            for block in range(start // self._size, -(-stop // self._size)):
                here = min(stop, (block + 1) * self._size) - max(start, block * self._size)
                assert here <= self._missing[block], "an element lands once"
                self._missing[block] -= here
                if self._missing[block] == 0:
                    self._begin(block)

    def found(self) -> list[Found]:
        """By block, when all is found. What has not landed counts as it is now. Call once, at the
        end. Raises: what `work` raises."""
        with self._pool:
            with self._lock:
                for block, begun in enumerate(self._found):
                    if begun is None:
                        self._begin(block)
            return [begun.result() for begun in self._found if begun is not None]

    def close(self) -> None:
        """Nobody wants to know any more. Nothing is read after this."""
        self._pool.shutdown(cancel_futures=True)

    def _begin(self, block: int) -> None:
        start = block * self._size
        stop = min(start + self._size, self._elements)
        self._found[block] = self._pool.submit(self._work, start, stop)
