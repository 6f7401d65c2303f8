"""The control API: gRPC on a Unix socket that only this user may open."""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Protocol

import grpc

from atom.base.errors import StorageError, UserError
from atom.base.files import remove_leftover
from atom.wire import control_pb2, control_pb2_grpc


class Controllable(Protocol):
    """What a daemon lets its owner do. Called from gRPC's threads."""

    def info(self) -> Mapping[str, Any]: ...
    def pause(self) -> str: ...
    def resume(self) -> str: ...
    def leave(self, deadline_s: float | None) -> str: ...
    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Reads the peer file again. Returns `key` of what has changed, and whether that is `live`.
        Raises: UserError; then nothing is changed."""
        ...

    def trace(self, ticket: int) -> tuple[int, str, str]:
        """Ticket 0: have the next pass recorded. Returns ticket, trace and summary; the latter are
        empty until the pass has ended: ask again with the ticket."""
        ...


class ControlServer:
    """Serves a `Controllable` on `socket_path` (mode 0600)."""

    def __init__(self, target: Controllable, socket_path: Path) -> None:
        self._path = socket_path
        pool = futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="control")
        self._server = grpc.server(pool)
        control_pb2_grpc.add_ControlServicer_to_server(_Servicer(target), self._server)

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


class _Servicer(control_pb2_grpc.ControlServicer):
    def __init__(self, target: Controllable) -> None:
        self._target = target

    def Info(self, request: Any, context: Any) -> control_pb2.InfoReply:  # noqa: N802
        return control_pb2.InfoReply(json=json.dumps(self._target.info()))

    def Pause(self, request: Any, context: Any) -> control_pb2.CommandReply:  # noqa: N802
        return control_pb2.CommandReply(message=self._target.pause())

    def Resume(self, request: Any, context: Any) -> control_pb2.CommandReply:  # noqa: N802
        return control_pb2.CommandReply(message=self._target.resume())

    def Reload(self, request: Any, context: Any) -> control_pb2.ReloadReply:  # noqa: N802
        try:
            changed = self._target.reload()
        except UserError as problem:
            kind = type(problem).__name__
            refusal = control_pb2.Refusal(message=problem.message, hint=problem.hint, kind=kind)
            return control_pb2.ReloadReply(refusal=refusal)
        return control_pb2.ReloadReply(changed=[control_pb2.Changed(**each) for each in changed])

    def Leave(  # noqa: N802
        self, request: control_pb2.LeaveRequest, context: Any
    ) -> control_pb2.CommandReply:
        deadline = request.deadline_seconds if request.deadline_seconds > 0 else None
        return control_pb2.CommandReply(message=self._target.leave(deadline))

    def Trace(  # noqa: N802
        self, request: control_pb2.TraceRequest, context: Any
    ) -> control_pb2.TraceReply:
        ticket, trace, summary = self._target.trace(request.ticket)
        return control_pb2.TraceReply(ticket=ticket, trace=trace, summary=summary)
