"""The other end of `switchboard`: a peer that cannot be dialled keeps lines open to some that can.

Whoever calls over a line is dialled, and served as if it had dialled us.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from atom.base.errors import PeerRefused
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.transport.dialer import Dialer
from atom.swarm.transport.endpoint import Endpoint
from atom.swarm.transport.switchboard import ANSWER, PING_S, TOKEN_BYTES

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_ANSWER_S = 3.0
_MOST_ANSWERS = 32
"""Calls that are being answered at a time, over all lines."""

Serve = Callable[[SocketStream, str], None]
"""Serves a connection as the listener does: (connection, host of the other end), to its end."""


class Lines:
    """Lines to others. `keep` says to whom; each has a thread that dials again when it breaks."""

    def __init__(self, endpoint: Endpoint, dialer: Dialer, serve: Serve) -> None:
        self._endpoint = endpoint
        self._dialer = dialer
        self._serve = serve
        self._changed = threading.Condition()
        self._wanted: frozenset[str] = frozenset()
        self._running: set[str] = set()
        self._up: dict[str, Channel] = {}
        self._moved: set[str] = set()
        """Who has said something new of where it is, since it was dialled last."""
        self._answers = threading.BoundedSemaphore(_MOST_ANSWERS)

    def keep(self, peer_ids: Iterable[str]) -> None:
        """From now on a line to each of these, and to no other."""
        with self._changed:
            self._wanted = frozenset(peer_ids)
            begin = self._wanted - self._running
            self._running |= begin
            ending = [line for peer, line in self._up.items() if peer not in self._wanted]
            self._changed.notify_all()
        for line in ending:
            line.close()
        for peer_id in begin:
            try:
                self._endpoint.crew.start("atom-line", partial(self._run, peer_id))
            except OSError:  # the next `keep` tries again
                self._ended(peer_id)

    def moved(self, peer_id: str) -> None:
        """It is somewhere else now, perhaps started again: no use in waiting out a long pause."""
        with self._changed:
            if peer_id in self._running:
                self._moved.add(peer_id)
                self._changed.notify_all()

    def up(self) -> frozenset[str]:
        """Whom a line leads to right now."""
        with self._changed:
            return frozenset(self._up)

    def wake(self) -> None:
        """After `closing` was set: lets the threads end."""
        with self._changed:
            self._changed.notify_all()

    def _run(self, peer_id: str) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._goes_on(peer_id):
                if self._hold(peer_id):
                    pause_s = _FIRST_PAUSE_S
                pause_s = self._rest(peer_id, pause_s)
        except Exception:
            self._ended(peer_id)  # the crew tells of it, and the next `keep` begins anew
            raise

    def _ended(self, peer_id: str) -> None:
        with self._changed:
            self._running.discard(peer_id)
            self._moved.discard(peer_id)

    def _rest(self, peer_id: str, pause_s: float) -> float:
        """Waits before the next try; how long to wait before the one after it."""
        with self._changed:
            self._changed.wait_for(lambda: self._over(peer_id), _FIRST_PAUSE_S)
            self._changed.wait_for(
                lambda: self._over(peer_id) or peer_id in self._moved, pause_s - _FIRST_PAUSE_S
            )
            if peer_id in self._moved:
                self._moved.discard(peer_id)
                return _FIRST_PAUSE_S
        return min(2 * pause_s, _LONGEST_PAUSE_S)

    def _hold(self, peer_id: str) -> bool:
        """Keeps a line until it breaks. Whether anything came over it: who has no room for one more
        lets us in, and hangs up."""
        try:
            channel = self._dialer.dial_directly(peer_id, Purpose.LINE)
        except (OSError, PeerRefused):  # the next try is the answer
            return False
        with self._changed:
            self._up[peer_id] = channel
        heard = False
        try:
            while not self._over(peer_id):
                self._hear(peer_id, channel)
                heard = True
        except (OSError, PeerRefused):  # and to this
            pass
        finally:
            channel.close()
            with self._changed:
                del self._up[peer_id]
        return heard

    def _goes_on(self, peer_id: str) -> bool:
        with self._changed:
            if self._over(peer_id):
                self._ended(peer_id)  # under the lock: a later `keep` begins anew
                return False
            return True

    def _over(self, peer_id: str) -> bool:
        return self._endpoint.closing.is_set() or peer_id not in self._wanted

    def _hear(self, peer_id: str, channel: Channel) -> None:
        """Raises: PeerRefused, OSError."""
        kind, length = channel.recv_header(TOKEN_BYTES, Patience(3 * PING_S))
        token = channel.recv_rest(length, Patience(3 * PING_S))
        if kind == Kind.CALL and self._answers.acquire(blocking=False):
            try:
                self._endpoint.crew.start("atom-answer", partial(self._answer, peer_id, token))
            except OSError:
                self._answers.release()
                raise

    def _answer(self, peer_id: str, token: bytes) -> None:
        try:
            stream, host = self._dialer.open(peer_id, _ANSWER_S)
            try:
                stream.send_all(memoryview(ANSWER + token), Patience.within(_ANSWER_S))
            except OSError:
                stream.close()
                raise
        except OSError:  # the caller notices by itself
            return
        finally:
            self._answers.release()
        self._serve(stream, host)
