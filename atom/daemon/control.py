"""Server and client of the control API: JSON over gRPC on a Unix socket for this user only."""

import json
import os
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from atom.base.errors import ConfigError, ControlError, StorageError, UserError
from atom.daemon.state_directory import StateDirectory

COMMANDS = ("info", "pause", "resume", "leave", "reload")
_SERVICE = "atom.Control"
_TIMEOUT_S = 10.0
"""Longest wait of a client for an answer."""
MAX_ANSWER_BYTES = 64 << 20
"""Longest answer that a client reads."""
_REFUSALS = {kind.__name__: kind for kind in UserError.__subclasses__()}


class ControlServer:
    """Server for the commands of a daemon's owner, on a socket of mode 0600."""

    def __init__(self, target: object, state: StateDirectory) -> None:
        """Prepare the server without listening.

        Args:
            target: has a method for each of COMMANDS. gRPC's threads call them, and JSON must be
                able to hold what they return. The attribute may be replaced at any time.
            state: the locked state directory, which says where to listen.
        """
        self.target, self._state = target, state
        pool = futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="control")
        self._server = grpc.server(pool)
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._answering(name)) for name in COMMANDS
        }
        handler = grpc.method_handlers_generic_handler(_SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))

    def start(self) -> None:
        """Listen, and record the socket's path in the state directory.

        Raises:
            StorageError: the socket cannot be made.
        """
        path = self._state.place_control_socket()
        mask = os.umask(0o177)
        try:
            self._server.add_insecure_port(f"unix:{path}")
            self._server.start()
        except RuntimeError as problem:  # gRPC raises this error if it cannot bind
            raise StorageError(
                f"cannot listen on {path}",
                "no place holds sockets: choose --state DIR, or set XDG_RUNTIME_DIR to a folder of "
                "mode 0700, on another disk",
            ) from problem
        finally:
            os.umask(mask)

    def close(self) -> None:
        """Stop answering, and remove the socket."""
        self._server.stop(grace=0.5).wait()
        self._state.remove_control_socket()

    def _answering(self, name: str) -> Callable[[bytes, Any], bytes]:
        """Wrap a command as a gRPC method, which returns its result or a UserError's message."""

        def answer(request: bytes, context: Any) -> bytes:
            try:
                result = getattr(self.target, name)(*json.loads(request))
                reply: dict[str, Any] = {"result": result}
            except UserError as problem:
                reply = {"refused": (type(problem).__name__, problem.message, problem.hint)}
            return json.dumps(reply).encode()

        return answer


def ask(socket_path: Path, command: str, *arguments: Any) -> Any:
    """Send a command to a daemon and return its answer.

    The caller has checked that the socket belongs to a user whose daemon it may command.

    Args:
        socket_path: the daemon's control socket.
        command: one of COMMANDS.
        arguments: the command's arguments.

    Raises:
        ControlError: no daemon answers, or its answer is longer than MAX_ANSWER_BYTES.
        UserError: the daemon refused the command; of the class that the daemon raised.
    """
    options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
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
    """Return an error that says why there is no answer. Only the last case may mean no daemon."""
    if isinstance(problem, grpc.Call):
        if problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ControlError(f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes")
        if problem.code() is grpc.StatusCode.UNKNOWN:
            return ControlError(f"the daemon failed: {problem.details()}", "this is a bug")
        if problem.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ControlError(
                "the daemon runs another version of Atom, without this command",
                "end it with `atom leave`, then start the daemon again with this version",
            )
    return ControlError(
        f"the daemon at {path} accepts no commands now",
        "it is starting or stopping, as its terminal shows; SIGTERM ends it. `atom bootstrap` "
        "accepts no commands",
    )
