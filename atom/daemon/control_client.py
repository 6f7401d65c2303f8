"""Talking to the daemon on this machine."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from atom.base.errors import ConfigError, ControlError, UserError
from atom.wire import control_pb2, control_pb2_grpc

_TIMEOUT_S = 10.0
_LOOK_S = 1.0
_SILENCES = 3
"""So often in a row a daemon that was told to change something may not say what it is at."""

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

    def reload(self, told: Callable[[str], None] = lambda doing: None) -> list[dict[str, Any]]:
        """See `atom.daemon.control.Controllable`. Waits as long as the daemon is at it; `told`
        hears what it does meanwhile. Raises: UserError, as the daemon refused it."""
        reply = self._followed(control_pb2.ReloadRequest(), told)
        if reply.HasField("refusal"):
            refusal = reply.refusal
            kind = _REFUSALS.get(refusal.kind, ConfigError)
            raise kind(refusal.message, refusal.hint)
        return [{"key": each.key, "live": each.live} for each in reply.changed]

    def trace(self, ticket: int = 0) -> tuple[int, str, str]:
        """See `atom.daemon.control.Controllable.trace`."""
        reply = self._call("Trace", control_pb2.TraceRequest(ticket=ticket))
        return int(reply.ticket), str(reply.trace), str(reply.summary)

    def _followed(self, request: Any, told: Callable[[str], None]) -> Any:
        """The reply to `Reload`, which has no deadline: memory may be planned for and moved."""
        silences = 0
        with self._stub() as stub:
            under_way = stub.Reload.future(request)
            while True:
                try:
                    return under_way.result(timeout=_LOOK_S)
                except grpc.FutureTimeoutError:
                    silences = 0 if self._told(told) else silences + 1
                    if silences == _SILENCES:
                        raise

    def _told(self, told: Callable[[str], None]) -> bool:
        """Whether the daemon said what it is at."""
        try:
            told(self.info().get("reloading") or "")
        except ControlError:
            return False
        return True

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
        except (grpc.RpcError, grpc.FutureTimeoutError) as problem:
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
