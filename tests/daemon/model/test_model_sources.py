"""Founding and entering runs of every kind of model, in one process and without a swarm."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError, MismatchError, ModelError, TrustError
from atom.config.peer_file import PeerFile
from atom.daemon.model import recipe as recipes
from atom.daemon.model.pinning import pin_for_plan
from atom.daemon.peer.founding import Membership, enter_run
from atom.daemon.peer.own_code import ask_for_code, blob_name, check_trust
from atom.models.module_source import MAX_CODE_BYTES
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import PackageVersion
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer, plain_bytes
from atom.training.replica.worker import BatchLoader
from tests.daemon.model import kept_runs
from tests.daemon.model.kept_runs import Folder, folder_in, round_zero
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import GPT3, LLAMA, TEXT
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.swarm.swarm_samples import a_lease

HELD = f"{TEXT}\nvalidation_fraction = 0.2"
VALIDATED = "[validation]\nevery_rounds = 1\nbatches = 2"
CIRCLE = 'module = "own_models:circle"'
CONFIG = kept_runs.CONFIG | {"num_hidden_layers": 3, "attention_dropout": 0.5}
CODE = """
import torch
from torch import nn
from torch.nn import functional

class Words(nn.Module):
    def __init__(self, always=False):
        super().__init__()
        self.table, self.drop, self.always = nn.Embedding(256, 8), nn.Dropout(0.5), always
    def forward(self, input_ids, labels):
        hidden = self.drop(self.table(input_ids))
        if self.always:
            hidden = functional.dropout(hidden, 0.5, True)
        logits = functional.linear(hidden, self.table.weight)[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())

class Smoothed(Words):
    smoothing = 0.5
    def forward(self, input_ids, labels):
        logits = functional.linear(self.table(input_ids), self.table.weight)[:, :-1].flatten(0, 1)
        smoothing = self.smoothing if self.training else 0.0
        return functional.cross_entropy(logits, labels[:, 1:].flatten(), label_smoothing=smoothing)

class Sharp(Smoothed):
    smoothing = 0.0

class Lossless(Sharp):
    def forward(self, input_ids, labels):
        loss = super().forward(input_ids, labels)
        return loss if self.training else self.table(input_ids)

class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)
    def forward(self, x, y):
        return functional.mse_loss(self.line(x), y)

class Circle:
    def __len__(self):
        return 20
    def __getitem__(self, index):
        if index == 19:
            raise KeyError("lost")
        a = torch.tensor(float(index))
        return {"x": torch.stack([a.sin(), a.cos(), a / 20]), "y": torch.stack([a, -a])}

def words():
    ids = torch.zeros(2, 8, dtype=torch.int64)
    return Words(), {"input_ids": ids, "labels": ids.clone()}
def restless():
    return Words(always=True), words()[1]
def smoothed():
    return Smoothed(), words()[1]
def sharp():
    return Sharp(), words()[1]
def lossless():
    return Lossless(), words()[1]
def circle():
    return Points(), {"x": torch.zeros(1, 3), "y": torch.zeros(1, 2)}, Circle()
"""


def own(name: str) -> str:
    """A model of `CODE` that trains on text."""
    return f'module = "own_models:{name}"\nsequence_tokens = 8'


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path, CODE, CONFIG) as folder:
        yield folder


def at_genesis(member: Membership) -> BatchLoader:
    loader = BatchLoader(member.samples, member.manifest.owner, 4)
    loader.deal(member.genesis)
    return loader


def trained(member: Membership) -> float:
    """The mean loss of one pass."""
    before = member.replica.loss_sum
    sequences = member.replica.run_pass(at_genesis(member).draw(1))
    return (member.replica.loss_sum - before) / sequences


def validated(member: Membership) -> float:
    return member.replica.evaluate(at_genesis(member).validation(2)[""])


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (GPT3, TEXT),
        (LLAMA, TEXT),
        (own("words"), TEXT),
        (CIRCLE, 'source = "module"\nvalidation_fraction = 0.1'),
    ],
    ids=["gpt3", "llama", "words", "circle"],
)
def test_a_joiner_has_the_founder_s_model(folder: Folder, model: str, data: str) -> None:
    founder = folder.found(model, data=data)
    for name in ("config.json", "own_models.py"):
        (folder.root / name).unlink()
    joiner = folder.enter(founder)
    assert round_zero(joiner).initialise()
    state = founder.replica.state_arenas()
    assert state_digest(joiner.replica.state_arenas()) == state_digest(state)
    assert state["master"].count_nonzero() > 0
    batches = [at_genesis(member).draw(1)[0] for member in (founder, joiner)]
    assert batches[0].keys() == batches[1].keys()
    assert all(torch.equal(value, batches[1][name]) for name, value in batches[0].items())
    assert trained(founder) > 0
    assert founder.samples.tokens_per_sample == (1 if "circle" in model else 8)


def test_validation_is_without_dropout(folder: Folder) -> None:
    member = folder.found(LLAMA, data=HELD, more=VALIDATED)
    assert validated(member) == validated(member)
    assert trained(member) != trained(member), "training drops"


def test_validation_is_in_evaluation_mode_where_nothing_is_random(folder: Folder) -> None:
    smoothed, sharp = (
        folder.found(own(name), name, data=HELD, more=VALIDATED) for name in ("smoothed", "sharp")
    )
    assert validated(smoothed) == validated(sharp), "labels are smoothed in training only"
    assert trained(smoothed) != trained(sharp)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("restless", r"draws numbers at .*own_models\.py:13"),
        ("lossless", "in evaluation mode .*loss"),
    ],
)
def test_a_model_that_cannot_be_validated(folder: Folder, name: str, said: str) -> None:
    """Evaluation mode does not stop the model from drawing random numbers, or lacks its loss."""
    assert trained(folder.found(own(name), "without")) > 0
    with pytest.raises(ModelError, match=said) as caught:
        folder.found(own(name), "with", data=HELD, more=VALIDATED)
    assert "remove [validation]" in caught.value.hint


def test_a_sample_that_cannot_be_had_is_its_author_s_mistake(folder: Folder) -> None:
    loader = at_genesis(folder.found(CIRCLE, data='source = "module"'))
    with pytest.raises(ConfigError, match="sample 19 of the dataset cannot be read: KeyError"):
        loader.draw(5)


def test_a_text_with_a_token_beyond_the_model_is_named(folder: Folder) -> None:
    (folder.root / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 100}))
    with pytest.raises(ConfigError, match=r"the text has token 119, but .* ends at 99"):
        folder.found(LLAMA)


@pytest.mark.parametrize(
    ("model", "what", "hint"),
    [
        ('huggingface = "nothing.json"', "nothing.json cannot be read", "check its path"),
        ('huggingface = "."', "Is a directory", "check its path"),
        ('module = "no_such_module_here:make"', "cannot be imported", "Atom searches "),
    ],
)
def test_a_source_that_cannot_be_used_is_named(
    folder: Folder, model: str, what: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        folder.found(model)
    assert hint in caught.value.hint


def test_another_version_of_the_library_is_named(folder: Folder) -> None:
    founder = folder.found(LLAMA)
    versions = {**dict(founder.manifest.versions), "transformers": "9.9"}
    unknown = founder.manifest.run_file.replace('\\"llama\\"', '\\"llama9\\"')
    assert unknown != founder.manifest.run_file
    manifest = dataclasses.replace(
        founder.manifest,
        versions=tuple(PackageVersion(*each) for each in versions.items()),
        run_file=unknown,
    )
    with pytest.raises(MismatchError, match=r"founded with transformers 9\.9, here is") as caught:
        enter_run(manifest, founder.record, None, folder.box("b"))
    assert caught.value.hint.endswith("-m pip install transformers==9.9`")
    assert "llama9" in caught.value.message


def test_a_model_too_large_to_be_checked_is_told(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.console, told = Silence(), list[str]()
    monkeypatch.setattr(folder.console, "note", told.append)
    monkeypatch.setattr(recipes, "CHECKED_MEMORY_SHARE", 0.0)
    folder.found(LLAMA)
    assert any("NOT compared" in text for text in told)


def test_code_is_taken_from_whoever_has_the_right_bytes(folder: Folder) -> None:
    run, code = pin_for_plan(folder.run(own("words")), folder.root, PeerFile())
    assert code is not None
    network, transports, leases = LocalNetwork(), list[LocalTransport](), {}
    served: list[bytes | None] = [None, None, b"import os", b"#" * (MAX_CODE_BYTES + 1)]

    def join(content: bytes | None) -> LocalTransport:
        contents = {} if content is None else {blob_name(run): plain_bytes(content)}
        serve = BlobServer(contents.get).serve
        transport = LocalTransport(network, Identity.create(), bytes(16), EventList(), serve)
        transport.start()
        transports.append(transport)
        addresses = ("{}:{}".format(*transport.address),)
        leases[transport.peer_id] = a_lease(transport.peer_id, addresses=addresses)
        return transport

    try:
        me, *_ = (join(content) for content in served)
        owner = "of no lease"
        assert ask_for_code(me, run, leases, owner) is None
        join(code.content)
        assert ask_for_code(me, run, leases, owner) == code.content
    finally:
        for transport in transports:
            transport.close()


def test_trust_names_the_owner_and_the_code() -> None:
    for trusted in (None, "owner", "owner:ab"):
        check_trust("owner", "ab", trusted)
    check_trust("owner", None, "owner:ab")
    for friend in ("friend", "friend:ab"):
        with pytest.raises(TrustError, match="you trust friend, but this run is owner's"):
            check_trust("owner", "ab", friend)
    with pytest.raises(TrustError, match="you trust the code cd, but this run's is ab"):
        check_trust("owner", "ab", "owner:cd")
