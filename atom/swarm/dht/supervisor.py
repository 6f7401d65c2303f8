"""A DHT process that is always there: started again, with pauses, whenever it ends.

A hostile record or a bug may bring the node down; the swarm must not stop for that. While it is
down, calls fail at once with DirectoryUnavailable, and nobody is judged dead for our deafness.
"""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from atom.base.events import EventSink
from atom.swarm.addresses import ListenAddress, parse_listen
from atom.swarm.dht.client import DhtClient, DirectoryUnavailable
from atom.swarm.dht.frames import NodeSettings
from atom.swarm.dht.node_log import keep_small

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
CONTACTS_EVERY_SECONDS = 5.0
CALL_SECONDS = 4.0


class SteadyClient:
    """Calls to the present DHT process. Make, `start`, use and `close` in one event loop."""

    def __init__(self, settings: NodeSettings, events: EventSink | None = None) -> None:
        self._settings = settings
        self._events = events
        self._client = DhtClient(settings)
        self._kept: dict[tuple[str, str], str] = {}
        self._watching: asyncio.Task[None] | None = None
        self.contacts: tuple[str, ...] = settings.contacts
        """DHT nodes met lately, as multiaddrs: where to look after a restart."""
        self.restarted = asyncio.Event()
        """Set each time the process has been started again; clear it to wait for the next."""

    @property
    def process_id(self) -> int | None:
        return self._client.process_id

    async def start(self) -> None:
        """The first start must succeed. Raises: as DhtClient.start."""
        await self._client.start()
        try:
            await self._hold_port()
        except BaseException:
            await self._client.close()
            raise
        self._watching = asyncio.create_task(self._watch())

    async def call(self, name: str, timeout_s: float = CALL_SECONDS, **args: Any) -> dict[str, Any]:
        """Raises: DirectoryUnavailable, at once while the process is being started again."""
        return await self._client.call(name, timeout_s, **args)

    async def keep(self, key: str, subkey: str, record: str) -> bool:
        """Stores a record (base64) now and every minute, across restarts of the process.

        Returns whether some node took it; False also if one holds a later copy of it.
        """
        self._kept[key, subkey] = record
        answer = await self.call("keep", key=key, subkey=subkey, record=record)
        return bool(answer["stored"])

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._client.close()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONTACTS_EVERY_SECONDS):
                    await self._client.ended.wait()
            if self._client.ended.is_set():
                await self._start_again()
            else:
                with contextlib.suppress(RuntimeError):  # no thread to be had
                    await asyncio.to_thread(keep_small, self._settings.log_path)
                with contextlib.suppress(DirectoryUnavailable):
                    answer = await self.call("contacts")
                    self.contacts = tuple(answer["addresses"])

    async def _start_again(self) -> None:
        self._emit("dht-process-ended")
        pause_s = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_SECONDS)
            try:
                await self._client.close()
                await self._start_another()
            except Exception as error:  # noqa: BLE001 - the supervisor: who stopped here is deaf
                self._emit("dht-restart-failed", detail=str(error))
                continue
            self._emit("dht-process-restarted")
            self.restarted.set()
            return

    async def _start_another(self) -> None:
        contacts = tuple(dict.fromkeys((*self.contacts, *self._settings.initial_peers)))
        self._client = DhtClient(replace(self._settings, initial_peers=(), contacts=contacts))
        await self._client.start()
        for (key, subkey), record in list(self._kept.items()):
            await self.call("keep", key=key, subkey=subkey, record=record)

    async def _hold_port(self) -> None:
        """Keeps the port the system chose, so that others find us again after a restart."""
        wished = parse_listen(self._settings.listen or "127.0.0.1:0")
        if wished.port or self._settings.client_mode:
            return
        addresses = (await self.call("addresses"))["addresses"]
        ports = {a.split("/tcp/")[1].split("/")[0] for a in addresses if "/tcp/" in a}
        if len(ports) == 1:
            listen = str(ListenAddress(wished.host, int(ports.pop())))
            self._settings = replace(self._settings, listen=listen)

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(kind, **fields)
