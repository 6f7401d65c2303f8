"""Who else hears of a daemon's events than its log: Prometheus, and trackers of experiments. Those
get a round's figures, each by its own library, into files of its own. Nothing is sent anywhere.

A library may be slow, hang or fail: it is called on a thread of its own, what it does not take in
time is dropped, and with its first fault it is given up. Training hears nothing of that.
"""

import logging
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError, StorageError
from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console
from atom.daemon.extensions import Info, Monitors
from atom.extras.monitors.metrics import Metrics
from atom.models.installing import install_extra

Log = Callable[[int, Mapping[str, float]], None]
"""Takes a round, and its figures by tag."""
Opened = tuple[Log, Callable[[], None]]
"""And what is called at the end."""
WAITING = 1000
"""Rounds that a library has not taken yet; further ones are dropped."""
CLOSE_S = 30.0
"""After the peer has left its swarm; some libraries take ten seconds to load."""
_TAGS = {
    "loss": "loss/training",
    "validation_loss": "loss/validation",
    "tokens_per_s": "swarm/tokens_per_s",
    "sequences": "swarm/sequences",
    "gradient_norm": "gradient_norm",
    "reduce_seconds": "all_reduce_seconds",
}
"""Key of a `round` event → tag."""


def figures(event: Mapping[str, Any]) -> dict[str, float]:
    """Of a `round` event, by tag."""
    told = {tag: float(event[key]) for key, tag in _TAGS.items() if event.get(key) is not None}
    texts = event.get("validation", {"texts": {}})["texts"]
    told |= {f"loss/validation/{name}": each["loss"] for name, each in texts.items()}
    return told | {"swarm/peers": float(len(event["members"]))}


def _tensorboard(folder: Path, info: Mapping[str, Any]) -> Opened:
    from tensorboard.summary import Writer

    writer = Writer(str(folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"))

    def log(round_number: int, told: Mapping[str, float]) -> None:
        for tag, value in told.items():
            writer.add_scalar(tag, value, round_number)
        writer.flush()

    return log, writer.close


def _wandb(folder: Path, info: Mapping[str, Any]) -> Opened:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    quiet = wandb.Settings(
        mode="offline", console="off", silent=True, x_disable_meta=True, x_disable_stats=True
    )
    run = wandb.init(dir=folder, project=info["run"], name=info["peer_id"][-6:], settings=quiet)
    run.define_metric("*", step_metric="round")
    return lambda number, told: run.log({**told, "round": number}), run.finish


def _mlflow(folder: Path, info: Mapping[str, Any]) -> Opened:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    known = client.get_experiment_by_name(info["run"])
    experiment = known.experiment_id if known else client.create_experiment(info["run"])
    run_id = client.create_run(experiment, run_name=info["peer_id"][-6:]).info.run_id

    def log(round_number: int, told: Mapping[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [Metric(tag, value, now_ms, round_number) for tag, value in told.items()]
        client.log_batch(run_id, metrics)

    return log, lambda: client.set_terminated(run_id)


TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
"""By the key under [log], which is the library's name and the extra's."""


class Tracker:
    """An event sink. Thread-safe."""

    def __init__(self, key: str, folder: Path, note: Callable[[str], None]) -> None:
        """Looks at library and folder; a start that comes to nothing leaves nothing there. `note`
        hears, once, that nothing more comes. Raises: ConfigError without the library; StorageError
        if the folder cannot be written."""
        if find_spec(key) is None:
            raise ConfigError(
                f"log.{key}: the {key} library is not installed",
                f"`{install_extra(key)}`; or leave the key out",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as problem:
            what = f"cannot write {folder}: {problem.strerror}"
            raise StorageError(what, f"name another: [log] {key}") from problem
        self._key, self._folder, self._note = key, folder, note
        self._waiting = queue.Queue[tuple[int, Mapping[str, float]] | None](WAITING)
        self._thread: threading.Thread | None = None

    def begin(self, info: Info) -> None:
        self._thread = threading.Thread(
            target=self._serve, args=(info,), name=f"track-{self._key}", daemon=True
        )
        self._thread.start()

    def emit(self, kind: str, **fields: Any) -> None:
        if kind == "round":
            with suppress(queue.Full):
                self._waiting.put_nowait((fields["round"], figures(fields)))

    def close(self) -> None:
        """What waits is written first, for as long as `CLOSE_S`."""
        if self._thread is not None and self._thread.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                self._note(f"{self._key} is slow: its last rounds are not written")

    def _serve(self, info: Info) -> None:
        try:
            first = self._waiting.get()
            if first is not None:
                log, close = TRACKERS[self._key](self._folder, info())
                log(*first)
                for each in iter(self._waiting.get, None):
                    log(*each)
                close()
        except Exception as problem:  # noqa: BLE001 - a library's faults are not the training's
            what = getattr(problem, "strerror", None) or problem
            self._note(f"nothing more for {self._key} until the next start: {what}")


def open_monitors(peer: PeerFile, stack: ExitStack, console: Console) -> Monitors:
    """Those that the peer file asks for. What they hold is freed with the stack. Takes the port of
    metrics, if they are wanted: before anything is made that may take hours. Raises: ConfigError,
    StorageError, PortInUseError, AddressError."""
    sinks, metrics, url = list[EventSink](), Metrics(), ""
    if peer.metrics.port is not None:
        host = peer.metrics.host
        server = metrics.serve(host, peer.metrics.port)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        sinks.append(metrics)
    trackers = [
        Tracker(key, Path(folder), console.note)
        for key, folder in peer.log.model_dump(exclude_none=True).items()
    ]
    for tracker in trackers:
        stack.callback(tracker.close)

    def begin(info: Info) -> None:
        if url:
            stack.callback(metrics.show(info))
            console.note(f"metrics: {url}")
        for tracker in trackers:
            tracker.begin(info)

    return [*sinks, *trackers], begin
