"""A founder's folder, its text, models and state directories: in one process, without a swarm."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atom.config.load import load_run_file
from atom.config.run_file import RunFile
from atom.daemon.console import Console
from atom.daemon.model.exporting import export_run
from atom.daemon.model.round_zero import RoundZero
from atom.daemon.peer.box import Box, open_box
from atom.daemon.peer.founding import Membership, enter_run, found_run
from atom.models.module_source import read_code
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import encode_manifest
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import write_snapshot
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import TEXT, TINY_DATA, TINY_PEER, TINY_TEXT, run_text

WORDS = 'module = "own_models:words"\nsequence_tokens = 8'
CONFIG: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 16,
    "tie_word_embeddings": True,
}
CODE = """
import torch
from torch import nn
from torch.nn import functional

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(256, 8), nn.Linear(8, 256, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.tensor([2.0]))
    def forward(self, input_ids, labels):
        logits = self.head(self.table(input_ids))[:, :-1] * self.scale
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())

def words():
    ids = torch.zeros(2, 8, dtype=torch.int64)
    return Words(), {"input_ids": ids, "labels": ids.clone()}

def loud():
    module, batch = words()
    with torch.no_grad():
        module.table.weight[3, 1] = 1e5
    return module, batch
"""


def round_zero(
    member: Membership, console: Console | None = None, weights: Path | None = None
) -> RoundZero:
    """Return the first state of a member's run, with the ways to set its replica to that state."""
    console, weights = console or Silence(), weights or member.weights
    return RoundZero(member.manifest, member.recipe, member.replica, console, weights)


class Folder:
    """Folder with files of a run and state directories. Create it with `folder_in`."""

    def __init__(self, root: Path, code: str, config: Mapping[str, object]) -> None:
        self.root = root
        (root / "text.txt").write_text(TINY_TEXT)
        (root / "config.json").write_text(json.dumps(config))
        (root / "own_models.py").write_text(code)
        self.console: Console = Silence()
        self.device = self.host = ""
        """Further lines of the sections [device] and [host] of peer files."""
        self._boxes: list[Box] = []

    def box(self, name: str, data: str = TINY_DATA) -> Box:
        """Return the box of peer `name`, whose peer file has `data` as its section [data]."""
        peer = self.root / "peer.toml"
        text = TINY_PEER.format(device=self.device).replace(TINY_DATA, data)
        peer.write_text(f"{text}[host]\n{self.host}\n")
        self._boxes.append(open_box("kept", peer, self.root / name, self.console))
        return self._boxes[-1]

    def unlock(self) -> None:
        """Unlock all state directories."""
        for box in self._boxes:
            box.state.unlock()

    def run(self, model: str, data: str = TEXT, more: str = "") -> RunFile:
        path = self.root / "run.toml"
        path.write_text(run_text("kept", model, data, more, learning_rate=1e-2))
        return load_run_file(path)

    def found(
        self,
        model: str,
        name: str = "a",
        weights: Path | None = None,
        more: str = "",
        data: str = TEXT,
    ) -> Membership:
        """Found the run or continue it, and unlock its state directory again."""
        run, box = self.run(model, data, more), self.box(name)
        try:
            return found_run(run, self.root, box, weights)
        finally:
            box.state.unlock()

    def enter(self, member: Membership, name: str = "b", weights: Path | None = None) -> Membership:
        """Enter the run as a joiner that has the manifest and a copy of the text."""
        code = None
        if member.code is not None:
            kept = self.root / "fetched.py"
            kept.write_bytes(member.code.content)
            assert member.run.model.module is not None
            code = read_code(member.run.model.module, kept)
        box = self.box(name)
        return enter_run(member.manifest, member.record, code, box, weights=weights)

    def snapshot(self, member: Membership, name: str = "a") -> Path:
        """Write the replica's present state as the snapshot of round 0, and return its path."""
        state = member.replica.state_arenas()
        digest = member.manifest.initial_state_digest
        folder = self.root / name / "snapshots"
        return write_snapshot(folder, 0, member.genesis.digest, digest, state).path

    def export(self, target: str = "out", name: str = "a", **asked: Any) -> Path:
        """Export what peer `name` has on disk, and return the path of the folder."""
        return export_run(self.root / target, self.root / name, Silence(), **asked)

    def as_first_state(self, member: Membership) -> None:
        """Rewrite manifest and snapshot, as if the run had begun with the replica's state."""
        digest = state_digest(member.replica.state_arenas())
        manifest = dataclasses.replace(member.manifest, initial_state_digest=digest)
        root = self.root / "a"
        record = encode_manifest(manifest, Identity.load_or_create(root / "identity.key"))
        (root / "manifest.bin").write_bytes(record)
        self.snapshot(dataclasses.replace(member, manifest=manifest, record=record))


@contextmanager
def folder_in(
    root: Path, code: str = CODE, config: Mapping[str, object] = CONFIG
) -> Iterator[Folder]:
    """Create a `Folder`, and restore Python's import path afterwards.

    Args:
        code: content of own_models.py.
        config: content of config.json.
    """
    folder, path = Folder(root, code, config), list(sys.path)
    try:
        yield folder
    finally:
        folder.unlock()
        sys.path[:] = path
