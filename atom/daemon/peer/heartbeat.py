"""Thread of the directory, and on it the heartbeat: renew our lease, and read other peers' leases.

Leases travel over two channels: the DHT, and messages between peers that know each other. Neither
channel waits for the other, so a slow or dead channel does not delay the working one.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from atom.base.clock import BootClock, Clock
from atom.base.errors import AddressError
from atom.base.events import EventSink
from atom.swarm.chain.messages import Leases, encode
from atom.swarm.dht.directory import Directory, no_answer, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.records.lease import RENEW_SECONDS, Lease, SignedLease
from atom.swarm.records.store import DirectoryUnavailable
from atom.swarm.transport.dialer import Hint
from atom.swarm.transport.lease_exchange import LeaseExchange
from atom.training.replica.pacing import with_news

T = TypeVar("T")

SETTLE_S = 0.15
"""Delay of a publication after the first change, so that several changes make one publication."""
SHARE_S = 0.2
"""Pause between two turns of sending leases to peers directly and handing on received leases."""
LEAST_PAUSE_S = 0.1
"""Shortest pause between two readings of the DHT."""
CALL_S, LAST_WORD_S = 15.0, 3.0
"""Bounds on one call from another thread, and on storing our last lease at the end."""
PATIENCE_S, ASK_AGAIN_S = 60.0, 1.0
"""Time for which a starting peer asks the DHT again, and the pause between two questions. A DHT
process that ended is usually back sooner."""
DHT_START_S = 180.0
"""Bound on opening the directory: longer than the node's own time limits."""


class DirectoryThread:
    """Thread with the event loop that runs an open directory."""

    def __init__(self, opening: Coroutine[Any, Any, Directory], clock: Clock) -> None:
        """Start the thread and wait for `opening`.

        Raises:
            TimeoutError, or any exception of `opening`: the thread has ended again.
        """
        self.loop, self._clock = asyncio.new_event_loop(), clock
        self._thread = threading.Thread(target=self.loop.run_forever, name="directory", daemon=True)
        self._thread.start()
        try:
            self.directory = self.call(opening, DHT_START_S)
            """Directory; its coroutines run through `call` only."""
        except BaseException:
            self._end()
            raise

    def call(self, task: Coroutine[Any, Any, T], timeout_s: float = CALL_S) -> T:
        """Run `task` on this thread, and return its result.

        Raises:
            TimeoutError, or any exception of `task`.
        """
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(timeout_s)

    def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `question` on this thread, and repeat it for a minute while the DHT is unavailable.

        A starting peer may have worked for hours already, so a short outage must not end it.

        Raises:
            AddressError: the DHT stayed unavailable. Other exceptions of `question` pass through.
        """
        give_up_at = self._clock.now() + PATIENCE_S

        async def repeat() -> T:
            while True:
                try:
                    return await question()
                except DirectoryUnavailable:
                    if self._clock.now() >= give_up_at:
                        raise
                await asyncio.sleep(ASK_AGAIN_S)

        try:
            return self.call(repeat(), PATIENCE_S + 2 * CALL_S)
        except (DirectoryUnavailable, TimeoutError) as problem:
            raise no_answer(problem) from problem

    def close(self) -> None:
        """Close the directory and end the thread."""
        try:
            self.call(self.directory.close())
        except (TimeoutError, DirectoryUnavailable):
            pass  # the DHT's process ends together with this process
        finally:
            self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def enter_dht(run: str, owner: str, node: NodeSettings, events: EventSink) -> DirectoryThread:
    """Open the directory of a run.

    Raises:
        AddressError: the DHT node did not start, or an address is wrong.
        PortInUseError, StorageError: as `open_directory`.
    """
    try:
        return DirectoryThread(open_directory(run, owner, node, events), BootClock())
    except (DirectoryUnavailable, TimeoutError) as problem:
        raise AddressError(
            f"the DHT node did not start: {str(problem) or 'no answer'}",
            f"try again; its own log is {node.log_path}",
        ) from problem


class Heartbeat:
    """Publisher of our lease and reader of other peers' leases, over the DHT and peer to peer."""

    def __init__(
        self,
        thread: DirectoryThread,
        on_leases: Callable[[dict[str, Lease]], None],
        on_failure: Callable[[BaseException], None],
        events: EventSink,
        clock: Clock,
        exchange: LeaseExchange,
        send: Callable[[str, bytes], object],
    ) -> None:
        """Start nothing yet. The callables run on the directory's thread.

        Args:
            on_leases: takes all known leases, by peer id, whenever some lease is newer.
            on_failure: takes the exception that ended the heartbeat.
            send: sends a message to a peer id, and does not block; called on any thread.
        """
        self._thread, self._directory = thread, thread.directory
        self._describe: Callable[[], Lease]
        self._pause: Callable[[], float]
        self._on_leases = on_leases
        self._on_failure, self._events, self._clock = on_failure, events, clock
        self._exchange, self._send = exchange, send
        self._news = asyncio.Event()
        self._unstored = asyncio.Event()
        self._newest: SignedLease
        self._read_leases: dict[str, Lease] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._blind = False

    def start(self, describe: Callable[[], Lease], pause: Callable[[], float]) -> None:
        """Begin to publish, store, read and share leases, on the directory's thread.

        Args:
            describe: returns our lease as it is now.
            pause: returns the seconds until the next reading of the DHT.
        """
        self._describe, self._pause = describe, pause

        async def begin() -> None:
            for rhythm in (self._publish(), self._store(), self._read(), self._share()):
                self._tasks.append(asyncio.create_task(self._guard(rhythm)))

        self._thread.call(begin())

    def nudge(self) -> None:
        """Publish our lease soon, because it has changed. Thread-safe."""
        self._thread.loop.call_soon_threadsafe(self._news.set)

    def hear(self, sender: str, message: Leases) -> None:
        """Take leases that a peer sent directly, and answer. Thread-safe.

        Raises:
            PeerRefused: a lease is malformed.
        """
        answer = self._exchange.hear(sender, message, self._clock.now(), time.time())
        if answer is not None:
            self._send(sender, Hint(encode(answer)))

    def close(self) -> None:
        """End, and publish our lease a last time if the heartbeat was started."""
        if self._tasks:
            try:
                self._thread.call(self._farewell())
            except (TimeoutError, DirectoryUnavailable):
                self._events.emit("farewell-unheard")

    async def _farewell(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sign()
        if self._send_due():
            await asyncio.sleep(SETTLE_S)  # the transport closes next, and drops queued messages
        async with asyncio.timeout(LAST_WORD_S):
            await self._directory.store_lease(self._newest)

    async def _guard(self, rhythm: Coroutine[Any, Any, None]) -> None:
        try:
            await rhythm
        except Exception as failure:  # noqa: BLE001 - the daemon decides about any failure
            self._on_failure(failure)

    async def _publish(self) -> None:
        while True:
            self._sign()
            try:
                async with asyncio.timeout(RENEW_SECONDS):  # wait_for can miss a cancellation
                    await self._news.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._news.clear()

    def _sign(self) -> None:
        self._newest = self._directory.sign_lease(self._describe())
        self._exchange.publish(self._newest)
        self._unstored.set()

    async def _store(self) -> None:
        while True:
            await self._unstored.wait()
            self._unstored.clear()
            try:
                await self._directory.store_lease(self._newest)
            except DirectoryUnavailable as problem:
                self._lost_sight(problem)

    async def _read(self) -> None:
        while True:
            started = self._clock.now()
            try:
                self._read_leases = await self._directory.read_leases()
            except DirectoryUnavailable as problem:
                self._lost_sight(problem)
            else:
                self._blind = False
                self._exchange.read(self._directory.records, self._clock.now(), time.time())
                self._hand_on()
            now = self._clock.now()
            pause_s = with_news(self._pause(), self._exchange.hears(self._read_leases, now))
            await asyncio.sleep(max(started + pause_s - now, LEAST_PAUSE_S))

    async def _share(self) -> None:
        while True:
            self._send_due()
            if self._exchange.has_changed.is_set():
                self._hand_on()
            await asyncio.sleep(SHARE_S)

    def _send_due(self) -> bool:
        """Send the messages that are due. Return True if there was one."""
        messages = self._exchange.due(self._clock.now())
        for peer_id, message in messages.items():
            self._send(peer_id, Hint(encode(message)))
        return bool(messages)

    def _hand_on(self) -> None:
        """Pass on the leases of both channels. A lease that is not newer is no sign of life."""
        self._exchange.has_changed.clear()
        self._on_leases(self._exchange.merged(self._read_leases, self._clock.now()))

    def _lost_sight(self, problem: Exception) -> None:
        if not self._blind:
            self._blind = True
            self._events.emit("directory-unavailable", detail=str(problem))
