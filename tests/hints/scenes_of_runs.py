"""Hints about a run that was founded."""

import atexit
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from atom.config.load import parse_run_text
from atom.config.model_and_data import Model
from atom.daemon.model.kept_run import KeptRun
from atom.daemon.peer.box import open_box
from atom.daemon.peer.founding import found_run, read_manifest
from atom.training.run_optimizer import load_run
from tests.cli.good_run import GOOD_RUN
from tests.daemon.peer.small_peer import found_in
from tests.daemon.silence import Silence
from tests.hints.scene import Act, scene
from tests.toml_text import with_key


@cache
def founded() -> Path:
    root = Path(mkdtemp())
    atexit.register(shutil.rmtree, root)
    found_in(root)
    return root


def continued(folder: Path, state: str, **changes: str) -> None:
    """Continues the founded run, whose state directory was copied, with other keys."""
    shutil.copytree(founded(), folder, dirs_exist_ok=True)
    text = (folder / "run.toml").read_text()
    for key, value in changes.items():
        text = with_key(text, f"run.{key}", value)
    (folder / "run.toml").write_text(text)
    run = load_run(folder / "run.toml")
    box = open_box(run.run.name, folder / "peer.toml", folder / state, Silence())
    try:
        found_run(run, folder, box)
    finally:
        box.state.unlock()


def manifest_read(folder: Path, spoil: Callable[[Path], object], state: str = "state") -> None:
    shutil.copytree(founded(), folder, dirs_exist_ok=True)
    spoil(folder / "state/manifest.bin")
    box = open_box("tiny", folder / "peer.toml", folder / state, Silence())
    try:
        read_manifest(box)
    finally:
        box.state.unlock()


def cut(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes()[:-1])


def unreadable(manifest: Path) -> None:
    manifest.unlink()
    manifest.mkdir()


def kept_chain(folder: Path, mended: bool) -> None:
    shutil.copytree(founded(), folder, dirs_exist_ok=True)
    if not mended:
        (folder / "state/chain.bin").mkdir()
    KeptRun.read(folder / "state", lambda note: None)


def begins(found: dict[str, str | None], weights_given: bool, **keys: Any) -> Act:
    model = parse_run_text(GOOD_RUN).model
    named = Model(**{"sequence_tokens": model.sequence_tokens, "huggingface": "a/b", **keys})
    return lambda folder: named.pinned(found, weights_given)


COMMIT = {"revision": "a" * 40}
OF_RUNS = {
    "undo the change, or found a new run with another name or --state DIR": scene(
        lambda folder: continued(folder, "state", seed="99"),
        lambda folder: continued(folder, "state"),
        lambda folder: continued(folder, "other", seed="99"),
    ),
    "choose another directory with --state DIR": scene(
        lambda folder: continued(folder, "state", name='"other"'),
        lambda folder: continued(folder, "new", name='"other"'),
    ),
    "delete it, then join the run again, or choose another directory with --state DIR": scene(
        lambda folder: manifest_read(folder, cut),
        lambda folder: manifest_read(folder, Path.unlink),
        lambda folder: manifest_read(folder, cut, "other"),
    ),
    "check its permissions and its disk, or choose another directory with --state DIR": scene(
        lambda folder: manifest_read(folder, unreadable),
        lambda folder: manifest_read(folder, Path.exists),
        lambda folder: manifest_read(folder, unreadable, "other"),
    ),
    "name the state directory of a peer with --state DIR": scene(
        lambda folder: KeptRun.read(folder), lambda folder: KeptRun.read(founded() / "state")
    ),
    "check the permissions of {…}, and its disk": scene(
        lambda folder: kept_chain(folder, mended=False),
        lambda folder: kept_chain(folder, mended=True),
    ),
    'name it with huggingface = "OWNER/NAME", or remove the key and use --from FOLDER': scene(
        begins({"revision": None}, False, weights="hub"),
        begins(COMMIT, False, weights="hub"), begins({"revision": None}, True),
    ),
    "name their folder with --from FOLDER, or remove the key": scene(
        begins(COMMIT, False, weights="given"),
        begins(COMMIT, True, weights="given"), begins(COMMIT, False),
    ),
    "remove {…}: it is filled in when a run is founded": scene(
        begins(COMMIT, False, revision="b" * 40), begins(COMMIT, False)
    ),
}  # fmt: skip
