"""Talking to the daemon on this machine."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from atom.base.errors import ConfigError, ControlError
from atom.wire import control_pb2, control_pb2_grpc

_TIMEOUT_S = 10.0
_SETTING_S = 120.0
"""Caps of memory wait for the end of a pass, and to be planned for."""


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

    def set(self, assignments: Sequence[str]) -> list[dict[str, Any]]:
        """See `atom.daemon.control.Controllable.set`. Raises: ConfigError, too, for what the daemon
        does not accept."""
        request = control_pb2.SetRequest(assignments=assignments)
        reply = self._call("Set", request, _SETTING_S)
        if reply.HasField("refusal"):
            raise ConfigError(reply.refusal.message, reply.refusal.hint)
        return [
            {"key": each.key, "value": each.value, "live": each.live, "default": each.default}
            for each in reply.settings
        ]

    def trace(self, ticket: int = 0) -> tuple[int, str, str]:
        """See `atom.daemon.control.Controllable.trace`."""
        reply = self._call("Trace", control_pb2.TraceRequest(ticket=ticket))
        return int(reply.ticket), str(reply.trace), str(reply.summary)

    def _call(self, method: str, request: Any, timeout_s: float = _TIMEOUT_S) -> Any:
        # Of this user's own daemon; a trace of a large model is larger than gRPC's usual 4 MB.
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(f"unix:{self._path}", options) as channel:
            stub = control_pb2_grpc.ControlStub(channel)
            try:
                return getattr(stub, method)(request, timeout=timeout_s)
            except grpc.RpcError as problem:
                raise ControlError(
                    f"no daemon answers on {self._path}",
                    "is one running? name its state directory with --state DIR",
                ) from problem
