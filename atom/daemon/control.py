"""The control API, both ends: JSON over gRPC, on a Unix socket that only this user may open."""

import json
import os
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from atom.base.errors import ConfigError, ControlError, StorageError, UserError
from atom.base.files import remove_leftover

COMMANDS = ("info", "pause", "resume", "leave", "reload", "trace")
_SERVICE = "atom.Control"
_TIMEOUT_S = 10.0
_REFUSALS = {kind.__name__: kind for kind in UserError.__subclasses__()}


class ControlServer:
    """Lets a daemon's owner command it on `socket_path` (mode 0600)."""

    def __init__(self, target: object, socket_path: Path) -> None:
        """`target`: has a method for each of COMMANDS, which are called from gRPC's threads, and
        return what JSON can say."""
        self._path = socket_path
        pool = futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="control")
        self._server = grpc.server(pool)
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(_answering(getattr(target, name)))
            for name in COMMANDS
        }
        handler = grpc.method_handlers_generic_handler(_SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))

    def start(self) -> None:
        """Listens. The state directory's lock says that a socket left behind is nobody's.

        Raises: StorageError where what lies there is another user's.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as problem:
            raise StorageError(
                f"cannot listen on {self._path}: {problem.strerror}",
                "choose a state directory with a shorter path: --state DIR",
            ) from problem
        mask = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{self._path}")
            self._server.start()
        finally:
            os.umask(mask)

    def close(self) -> None:
        self._server.stop(grace=0.5).wait()
        remove_leftover(self._path)


def _answering(command: Callable[..., Any]) -> Callable[[bytes, Any], bytes]:
    """A command as a gRPC method: a list of arguments → its result, or what a UserError says."""

    def answer(request: bytes, context: Any) -> bytes:
        try:
            reply: dict[str, Any] = {"result": command(*json.loads(request))}
        except UserError as problem:
            reply = {"refused": (type(problem).__name__, problem.message, problem.hint)}
        return json.dumps(reply).encode()

    return answer


def ask(socket_path: Path, command: str, *arguments: Any) -> Any:
    """What the daemon that listens there says to one of COMMANDS. Raises: ControlError if none
    answers; UserError, as the daemon refused it."""
    # Of this user's own daemon; a trace of a large model is larger than gRPC's usual 4 MB.
    options = [("grpc.max_receive_message_length", -1)]
    try:
        with grpc.insecure_channel(f"unix:{socket_path}", options) as channel:
            call: Any = channel.unary_unary(f"/{_SERVICE}/{command}")
            reply = json.loads(call(json.dumps(arguments).encode(), timeout=_TIMEOUT_S))
    except grpc.RpcError as problem:
        raise _named(problem, socket_path) from problem
    if "refused" in reply:
        kind, message, hint = reply["refused"]
        raise _REFUSALS.get(kind, ConfigError)(message, hint)
    return reply["result"]


def _named(problem: Exception, path: Path) -> ControlError:
    """One that answers with a fault, or does not know the command, is there."""
    if isinstance(problem, grpc.Call):
        if problem.code() is grpc.StatusCode.UNKNOWN:
            return ControlError(f"the daemon failed at it: {problem.details()}", "this is a bug")
        if problem.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ControlError(
                "the daemon is of another version, which does not know this command",
                "`atom leave`, then start it again with this one",
            )
    return ControlError(
        f"the daemon at {path} takes no commands now",
        "it is starting, standing by or ending: its terminal says which, and SIGTERM ends it. "
        "`atom bootstrap` takes no commands at all",
    )
