"""The directory's thread, and a peer's heartbeat on it: its lease kept alive, everybody's read."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from atom.base.clock import BootClock, Clock
from atom.base.errors import AddressError
from atom.base.events import EventSink
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory, no_answer, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.records.lease import RENEW_SECONDS, Lease

T = TypeVar("T")

SETTLE_S = 0.15
"""News wait this long for more news, so that one change is one publication."""
LEAST_PAUSE_S = 0.1
"""Between two readings, however long the first took."""
CALL_S, LAST_WORD_S = 15.0, 3.0
PATIENCE_S, ASK_AGAIN_S = 60.0, 1.0
"""With a DHT while the peer starts: usually, its process is started again in less."""
DHT_START_S = 180.0
"""More than a node's own patience with slow machines and silent entrances."""


class DirectoryThread:
    """An event loop on a thread of its own, which an open directory lives on."""

    def __init__(self, opening: Coroutine[Any, Any, Directory], clock: Clock) -> None:
        """Raises: what `opening` does; TimeoutError. Then there is no thread."""
        self.loop, self._clock = asyncio.new_event_loop(), clock
        self._thread = threading.Thread(target=self.loop.run_forever, name="directory", daemon=True)
        self._thread.start()
        try:
            self.directory = self.call(opening, DHT_START_S)
            """Call it through `call`."""
        except BaseException:
            self._end()
            raise

    def call(self, task: Coroutine[Any, Any, T], timeout_s: float = CALL_S) -> T:
        """Runs `task` on this thread and waits for it. Raises what it raises; TimeoutError."""
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(timeout_s)

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

    def close(self) -> None:
        try:
            self.call(self.directory.close())
        except (TimeoutError, DirectoryUnavailable):
            pass  # its process ends with ours
        finally:
            self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def enter_dht(run: str, owner: str, node: NodeSettings, events: EventSink) -> DirectoryThread:
    """The directory of a run, open. Raises: AddressError, PortInUseError, StorageError."""
    try:
        return DirectoryThread(open_directory(run, owner, node, events), BootClock())
    except (DirectoryUnavailable, TimeoutError) as problem:
        raise AddressError(
            f"the DHT node did not come up: {str(problem) or 'no answer'}",
            f"try again; its own log is {node.log_path}",
        ) from problem


class Heartbeat:
    """Publishes what `describe` says, at once when there is news, and hands on what is read."""

    def __init__(
        self,
        thread: DirectoryThread,
        describe: Callable[[], Lease],
        on_leases: Callable[[dict[str, Lease]], None],
        pause: Callable[[], float],
        on_failure: Callable[[BaseException], None],
        events: EventSink,
        clock: Clock,
    ) -> None:
        """`pause`: seconds until the next reading. All are called on the directory's thread."""
        self._thread, self._directory = thread, thread.directory
        self._describe, self._on_leases, self._pause = describe, on_leases, pause
        self._on_failure, self._events, self._clock = on_failure, events, clock
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._blind = False

    def start(self) -> None:
        async def begin() -> None:
            for rhythm in (self._publish(), self._read()):
                self._tasks.append(asyncio.create_task(self._guard(rhythm)))

        self._thread.call(begin())

    def nudge(self) -> None:
        """Our lease has news: publish soon. From any thread."""
        self._thread.loop.call_soon_threadsafe(self._news.set)

    def close(self) -> None:
        """Publishes the last word: the lease as it is now, if there was one before."""
        if self._tasks:
            try:
                self._thread.call(self._farewell())
            except (TimeoutError, DirectoryUnavailable):
                self._events.emit("farewell-unheard")

    async def _farewell(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with asyncio.timeout(LAST_WORD_S):
            await self._directory.publish_lease(self._describe())

    async def _guard(self, rhythm: Coroutine[Any, Any, None]) -> None:
        try:
            await rhythm
        except Exception as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._on_failure(failure)

    async def _publish(self) -> None:
        while True:
            try:
                await self._directory.publish_lease(self._describe())
            except DirectoryUnavailable as problem:
                self._lost_sight(problem)
            try:
                async with asyncio.timeout(RENEW_SECONDS):  # wait_for can miss that we are to end
                    await self._news.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._news.clear()

    async def _read(self) -> None:
        while True:
            started = self._clock.now()
            try:
                leases = await self._directory.read_leases()
            except DirectoryUnavailable as problem:
                self._lost_sight(problem)
            else:
                self._blind = False
                self._on_leases(leases)
            due_in = self._pause() - (self._clock.now() - started)
            await asyncio.sleep(max(due_in, LEAST_PAUSE_S))

    def _lost_sight(self, problem: Exception) -> None:
        if not self._blind:
            self._blind = True
            self._events.emit("directory-unavailable", detail=str(problem))
