"""The control API, both ends: gRPC on a Unix socket that only this user may open."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc

from atom.base.errors import ConfigError, ControlError, StorageError, UserError
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
        """Ticket 0: have the next pass recorded. Returns ticket, spans (JSON) and summary; the
        latter are empty until the pass has ended: ask again with the ticket."""
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


_TIMEOUT_S = 10.0

_REFUSALS = {kind.__name__: kind for kind in UserError.__subclasses__()}


class ControlClient:
    """One call per command. Raises: ControlError if no daemon answers."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def info(self) -> dict[str, Any]:
        reply = self._call("Info", control_pb2.InfoRequest())
        info: dict[str, Any] = json.loads(reply.json)
        return info

    def pause(self) -> str:
        return str(self._call("Pause", control_pb2.PauseRequest()).message)

    def resume(self) -> str:
        return str(self._call("Resume", control_pb2.ResumeRequest()).message)

    def leave(self, deadline_s: float | None = None) -> str:
        request = control_pb2.LeaveRequest(deadline_seconds=deadline_s or 0.0)
        return str(self._call("Leave", request).message)

    def reload(self) -> list[dict[str, Any]]:
        """See `Controllable`. Raises: UserError, as the daemon refused it."""
        reply = self._call("Reload", control_pb2.ReloadRequest())
        if reply.HasField("refusal"):
            refusal = reply.refusal
            kind = _REFUSALS.get(refusal.kind, ConfigError)
            raise kind(refusal.message, refusal.hint)
        return [{"key": each.key, "live": each.live} for each in reply.changed]

    def trace(self, ticket: int = 0) -> tuple[int, str, str]:
        """See `Controllable.trace`."""
        reply = self._call("Trace", control_pb2.TraceRequest(ticket=ticket))
        return int(reply.ticket), str(reply.trace), str(reply.summary)

    def _call(self, method: str, request: Any) -> Any:
        with self._stub() as stub:
            return getattr(stub, method)(request, timeout=_TIMEOUT_S)

    @contextmanager
    def _stub(self) -> Iterator[Any]:
        """Raises: ControlError where a call inside finds nobody."""
        # Of this user's own daemon; a trace of a large model is larger than gRPC's usual 4 MB.
        options = [("grpc.max_receive_message_length", -1)]
        try:
            with grpc.insecure_channel(f"unix:{self._path}", options) as channel:
                yield control_pb2_grpc.ControlStub(channel)
        except grpc.RpcError as problem:
            raise _named(problem, self._path) from problem


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
        f"no daemon answers on {path}",
        "is one running? name its state directory with --state DIR",
    )
