"""Keeps our lease alive and reads everybody's: the directory's two rhythms on one thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from atom.base.clock import Clock
from atom.base.events import EventSink
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory, no_answer
from atom.swarm.records.lease import RENEW_SECONDS, Lease

T = TypeVar("T")

SETTLE_S = 0.15
"""News wait this long for more news, so that one change is one publication."""
LEAST_PAUSE_S = 0.1
"""Between two readings, however long the first took."""
CALL_S = 15.0
PATIENCE_S, ASK_AGAIN_S = 60.0, 1.0
"""With a DHT while the peer starts: usually, its process is started again in less."""


class Lookout:
    """Runs an event loop on its own thread; everything about the directory happens there."""

    def __init__(self, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._describe: Callable[[], Lease] | None = None
        self._on_leases: Callable[[dict[str, Lease]], None] = lambda leases: None
        self._on_failure: Callable[[BaseException], None] = lambda failure: None
        self._loop = asyncio.new_event_loop()
        self._news = asyncio.Event()
        self._directory: Directory | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._blind = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="lookout", daemon=True)

    def start(self) -> None:
        """Starts the thread; `watch` starts the rhythms."""
        self._thread.start()

    def call(self, task: Coroutine[Any, Any, T], timeout_s: float = CALL_S) -> T:
        """Runs `task` on the lookout's loop and waits for it. Raises what it raises."""
        return asyncio.run_coroutine_threadsafe(task, self._loop).result(timeout_s)

    def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `call`, for a peer that starts: hours of work may lie behind it, so a DHT that cannot
        be asked is asked again for a while. Raises: AddressError; whatever else `question` does."""
        try:
            return self.call(self._asked(question), PATIENCE_S + 2 * CALL_S)
        except (DirectoryUnavailable, TimeoutError) as problem:
            raise no_answer(problem) from problem

    async def _asked(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        give_up_at = self._clock.now() + PATIENCE_S
        while True:
            try:
                return await question()
            except DirectoryUnavailable:
                if self._clock.now() >= give_up_at:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    def attend(self, directory: Directory) -> None:
        """This directory is ours to close."""
        self._directory = directory

    @property
    def directory(self) -> Directory:
        """The one that is attended; call it through `call`."""
        assert self._directory is not None
        return self._directory

    def watch(
        self,
        describe: Callable[[], Lease],
        on_leases: Callable[[dict[str, Lease]], None],
        on_failure: Callable[[BaseException], None],
        pause: Callable[[], float],
    ) -> None:
        """Begins to publish what `describe` says and to hand on what is read, `pause` seconds
        apart. All are called on the lookout's thread."""
        directory = self.directory
        self._describe, self._on_leases, self._on_failure = describe, on_leases, on_failure

        async def begin() -> None:
            for rhythm in (self._publish(directory, describe), self._read(directory, pause)):
                self._tasks.append(asyncio.create_task(self._guard(rhythm)))

        self.call(begin())

    def nudge(self) -> None:
        """Our lease has news: publish soon. From any thread."""
        self._loop.call_soon_threadsafe(self._news.set)

    def close(self) -> None:
        """Publishes the last word (the lease as it is now) and closes the directory."""
        if self._thread.is_alive():
            try:
                self.call(self._farewell())
            except (TimeoutError, DirectoryUnavailable):
                self._events.emit("farewell-unheard")
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _farewell(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._directory is None:
            return
        try:
            if self._describe is not None:
                async with asyncio.timeout(3.0):
                    await self._directory.publish_lease(self._describe())
        finally:
            await self._directory.close()

    async def _guard(self, rhythm: Coroutine[Any, Any, None]) -> None:
        try:
            await rhythm
        except Exception as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._on_failure(failure)

    async def _publish(self, directory: Directory, describe: Callable[[], Lease]) -> None:
        while True:
            try:
                await directory.publish_lease(describe())
            except DirectoryUnavailable as problem:
                self._lost_sight(problem)
            try:
                async with asyncio.timeout(RENEW_SECONDS):  # wait_for can miss that we are to end
                    await self._news.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._news.clear()

    async def _read(self, directory: Directory, pause: Callable[[], float]) -> None:
        while True:
            started = self._clock.now()
            try:
                leases = await directory.read_leases()
            except DirectoryUnavailable as problem:
                self._lost_sight(problem)
            else:
                self._blind = False
                self._on_leases(leases)
            due_in = pause() - (self._clock.now() - started)
            await asyncio.sleep(max(due_in, LEAST_PAUSE_S))

    def _lost_sight(self, problem: Exception) -> None:
        if not self._blind:
            self._blind = True
            self._events.emit("directory-unavailable", detail=str(problem))
