"""The control API, both ends: a line of JSON each way, on a Unix socket that only this user may
open."""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from atom.base.errors import ConfigError, ControlError, StorageError, UserError
from atom.base.files import remove_leftover


class Controllable(Protocol):
    """What a daemon lets its owner do. Called from threads of the server's."""

    def info(self) -> Mapping[str, Any]: ...
    def pause(self) -> str: ...
    def resume(self) -> str: ...
    def leave(self, deadline_s: float | None) -> str: ...
    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Reads the peer file again. Returns `key` of what has changed, whether that is `live`,
        and what it `costs` the swarm, in words. Raises: UserError; then nothing is changed."""
        ...

    def trace(self, ticket: int) -> tuple[int, Sequence[Mapping[str, Any]], str]:
        """Ticket 0: have the next pass recorded. Returns ticket, spans and summary; the latter are
        empty until the pass has ended: ask again with the ticket."""
        ...


COMMANDS = ("info", "pause", "resume", "leave", "reload", "trace")
_TIMEOUT_S = 10.0
_REFUSALS = {kind.__name__: kind for kind in UserError.__subclasses__()}


class ControlServer:
    """Serves a `Controllable` on `socket_path` (mode 0600)."""

    def __init__(self, target: Controllable, socket_path: Path) -> None:
        self._target, self._path = target, socket_path
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Listens. The state directory's lock says that a socket left behind is nobody's.

        Raises: StorageError where what lies there is another user's.
        """
        listening, mask = socket.socket(socket.AF_UNIX), os.umask(0o177)
        try:
            self._path.unlink(missing_ok=True)
            listening.bind(str(self._path))
            listening.listen()
        except OSError as problem:
            listening.close()
            raise StorageError(
                f"cannot listen on {self._path}: {problem.strerror or problem}",
                "choose a state directory with a shorter path: --state DIR",
            ) from problem
        finally:
            os.umask(mask)
        self._socket = listening
        self._in_thread(self._accept, listening)

    def close(self) -> None:
        if self._socket is not None:
            with self._socket as listening:
                listening.shutdown(socket.SHUT_RDWR)  # wakes accept
            remove_leftover(self._path)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self._in_thread(self._serve, connection)

    def _in_thread(self, work: Callable[[socket.socket], None], on: socket.socket) -> None:
        threading.Thread(target=work, args=(on,), name="control", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_TIMEOUT_S)
        with connection, suppress(OSError):  # whoever asks may be gone
            with connection.makefile("rb") as file:
                asked = file.readline()
            connection.sendall(json.dumps(_answer(self._target, asked)).encode())


def _answer(target: Controllable, asked: bytes) -> dict[str, Any]:
    """`asked`: a command and its arguments. What comes of it, or what is wrong."""
    try:
        command, *arguments = json.loads(asked)
        if command not in COMMANDS:
            return {"unknown": command}
        return {"result": getattr(target, command)(*arguments)}
    except UserError as problem:
        return {"refused": (type(problem).__name__, problem.message, problem.hint)}
    except Exception as fault:  # noqa: BLE001 - a command that fails must not end the daemon
        return {"failed": f"{type(fault).__name__}: {fault}"}


class ControlClient:
    """A `Controllable` in another process; one connection per command.

    Raises: ControlError if no daemon answers; UserError, as the daemon refused it.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def info(self) -> dict[str, Any]:
        return dict(self._call("info"))

    def pause(self) -> str:
        return str(self._call("pause"))

    def resume(self) -> str:
        return str(self._call("resume"))

    def leave(self, deadline_s: float | None = None) -> str:
        return str(self._call("leave", deadline_s))

    def reload(self) -> list[dict[str, Any]]:
        return list(self._call("reload"))

    def trace(self, ticket: int = 0) -> tuple[int, list[dict[str, Any]], str]:
        ticket, spans, summary = self._call("trace", ticket)
        return ticket, spans, summary

    def _call(self, *asked: Any) -> Any:
        try:
            reply = json.loads(self._said_to(json.dumps(asked).encode() + b"\n"))
        except (OSError, ValueError) as problem:
            raise ControlError(
                f"no daemon answers on {self._path}",
                "is one running? name its state directory with --state DIR",
            ) from problem
        match reply:
            case {"refused": [kind, message, hint]}:
                raise _REFUSALS.get(kind, ConfigError)(message, hint)
            case {"failed": detail}:
                raise ControlError(f"the daemon failed at it: {detail}", "this is a bug")
            case {"unknown": _}:
                raise ControlError(
                    "the daemon is of another version, which does not know this command",
                    "`atom leave`, then start it again with this one",
                )
        return reply["result"]

    def _said_to(self, asked: bytes) -> bytes:
        """Raises: OSError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(str(self._path))
            connection.sendall(asked)
            with connection.makefile("rb") as answer:
                return answer.read()
