"""Founding and entering runs of every kind of model, in one process and without a swarm."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError, MismatchError, ModelError, TrustError
from atom.config.load import load_run_file, run_from_text
from atom.daemon.console import Console, Silence
from atom.daemon.model import recipe as recipes
from atom.daemon.model.model_source import pin_source
from atom.daemon.peer.box import Box, StartOptions, open_box
from atom.daemon.peer.founding import Membership, enter_run, found_run, run_of
from atom.daemon.peer.own_code import ask_for_code, blob_name, check_trust
from atom.models.own_code import MAX_CODE_BYTES, read_code
from atom.models.source import SourceError
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import Manifest, PackageVersion
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer, plain_bytes
from atom.training.replica.worker import BatchLoader
from tests.daemon.tiny_run import GPT3, LLAMA, TEXT, run_text
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork, LocalTransport

HELD = f"{TEXT}\nvalidation_fraction = 0.2"
VALIDATED = "[validation]\nevery_rounds = 1\nbatches = 2"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "attention_dropout": 0.5,
}
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


def a_lease(peer_id: str) -> Lease:
    zeros = {"serial": 1, "issued_at": 0.0, "round": 0, "sequences": 0}
    rates = {"sequences_per_s": 0.0, "tokens_per_s": 0.0, "pass_seconds": 0.0, "loss": None}
    return Lease(
        peer_id,
        bytes(16),
        state=PeerState.ACCUMULATING,
        head=bytes(32),
        state_digest=b"",
        addresses=("local:1",),
        **zeros,
        **rates,
    )


class Machine:
    """A founder's folder, and state directories of whoever takes part."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "text.txt").write_text("A peer gives what it has, and takes its part. " * 40)
        (root / "config.json").write_text(json.dumps(CONFIG))
        (root / "own_models.py").write_text(CODE)
        peer = '[device]\nkind = "cpu"\ncpu_threads = 1\n[data]\npaths = ["text.txt"]\n'
        (root / "peer.toml").write_text(peer)
        self.boxes: list[Box] = []
        self.console: Console = Silence()

    def write(self, model: str, data: str = TEXT, more: str = "") -> StartOptions:
        path = self.root / "run.toml"
        path.write_text(run_text("sources", model, data, more))
        return StartOptions(path)

    def box(self, name: str) -> Box:
        box = open_box("sources", self.root / "peer.toml", self.root / name, self.console)
        self.boxes.append(box)
        return box

    def found(self, model: str, data: str = TEXT, more: str = "", name: str = "a") -> Membership:
        options = self.write(model, data, more)
        return found_run(options, self.box(name), load_run_file(options.run_file))

    def enter(self, member: Membership, name: str = "b") -> Membership:
        """As a joiner that has nothing of the founder's but manifest, text and fetched code."""
        code = None
        if member.code is not None:
            fetched = self.root / "fetched.py"
            fetched.write_bytes(member.code)
            assert member.run.model.module is not None
            code = read_code(member.run.model.module, fetched)
        return enter_run(member.manifest, member.record, code, self.box(name))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    machine = Machine(tmp_path)
    yield machine
    for box in machine.boxes:
        box.state.unlock()


def at_genesis(member: Membership) -> BatchLoader:
    loader = BatchLoader(member.samples, member.manifest.owner, 4)
    loader.deal(member.genesis)
    return loader


def trained(member: Membership) -> float:
    batch = at_genesis(member).draw(1)[0]
    return member.replica.run_pass([batch]).loss_sum / 4


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (GPT3, TEXT),
        (LLAMA, TEXT),
        ('module = "own_models:words"\nsequence_tokens = 8', TEXT),
        ('module = "own_models:circle"', 'source = "module"\nvalidation_fraction = 0.1'),
    ],
    ids=["gpt3", "llama", "words", "circle"],
)
def test_a_joiner_has_the_founder_s_model(machine: Machine, model: str, data: str) -> None:
    founder = machine.found(model, data)
    for name in ("config.json", "own_models.py"):
        (machine.root / name).unlink()
    joiner = machine.enter(founder)
    assert joiner.initialise()
    state = founder.replica.state_arenas()
    assert state_digest(joiner.replica.state_arenas()) == state_digest(state)
    assert state["master"].count_nonzero() > 0
    batches = [at_genesis(member).draw(1)[0] for member in (founder, joiner)]
    assert batches[0].keys() == batches[1].keys()
    assert all(torch.equal(value, batches[1][name]) for name, value in batches[0].items())
    assert trained(founder) > 0
    assert founder.samples.tokens_per_sample == (1 if "circle" in model else 8)


def test_a_founder_takes_its_run_up_again(machine: Machine) -> None:
    options = machine.write('module = "own_models:words"\nsequence_tokens = 8')
    run = load_run_file(options.run_file)
    first = found_run(options, machine.box("a"), run)
    machine.boxes[0].state.unlock()
    again = found_run(options, machine.box("a"), run)
    assert again.manifest == first.manifest
    machine.boxes[1].state.unlock()
    (machine.root / "own_models.py").write_text(CODE + "\n# changed\n")
    with pytest.raises(MismatchError, match="or the model it names, has changed"):
        found_run(options, machine.box("a"), run)


def test_validation_is_without_dropout(machine: Machine) -> None:
    for number, model in enumerate((LLAMA, 'module = "own_models:words"\nsequence_tokens = 8')):
        member = machine.found(model, HELD, VALIDATED, name=f"v{number}")
        batches = at_genesis(member).validation(2)
        assert member.replica.evaluate(batches) == member.replica.evaluate(batches)
        losses = {trained(member) for _ in range(2)}
        assert len(losses) == 2, "training drops"


def test_validation_is_in_evaluation_mode_where_nothing_is_random(machine: Machine) -> None:
    smoothed, sharp = (
        machine.found(
            f'module = "own_models:{name}"\nsequence_tokens = 8', HELD, VALIDATED, name=name
        )
        for name in ("smoothed", "sharp")
    )
    losses = {m.replica.evaluate(at_genesis(m).validation(2)) for m in (smoothed, sharp)}
    assert len(losses) == 1, "labels are smoothed in training only"
    assert trained(smoothed) != trained(sharp)


def test_a_model_without_a_loss_in_evaluation_mode_is_validated_as_it_is_trained(
    machine: Machine,
) -> None:
    member = machine.found(
        'module = "own_models:lossless"\nsequence_tokens = 8', HELD, VALIDATED, name="lossless"
    )
    assert member.replica.evaluate(at_genesis(member).validation(2)) > 0


def test_a_model_that_is_random_even_in_evaluation(machine: Machine) -> None:
    model = 'module = "own_models:restless"\nsequence_tokens = 8'
    assert trained(machine.found(model, name="without")) > 0
    with pytest.raises(ModelError, match=r"draws numbers at .*own_models\.py:13") as caught:
        machine.found(model, HELD, VALIDATED, name="with")
    assert "remove [validation]" in caught.value.hint


def test_a_sample_that_cannot_be_had_is_its_author_s_mistake(machine: Machine) -> None:
    member = machine.found('module = "own_models:circle"', 'source = "module"')
    loader = at_genesis(member)
    with pytest.raises(SourceError, match="sample 19 of the dataset cannot be had: KeyError"):
        loader.draw(5)


def test_a_tokenizer_larger_than_the_model_is_named(machine: Machine) -> None:
    (machine.root / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 100}))
    with pytest.raises(ConfigError, match="the model has 100 tokens, the run's tokenizer 256"):
        machine.found(LLAMA)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ('huggingface = "nothing.json"', r"model\.huggingface: .*nothing\.json cannot be read"),
        ('huggingface = "text.txt"', r"model\.huggingface: the config is not JSON"),
        ('huggingface = "."', r"model\.huggingface: .* cannot be read"),
        ('module = "no_such_module_here:make"', r"model\.module: .* cannot be imported"),
        (
            'module = "own_models:Words"\nsequence_tokens = 8',
            "own_models:Words returned",
        ),
    ],
)
def test_a_source_that_cannot_be_used_is_named(machine: Machine, model: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        machine.found(model)
    assert caught.value.hint


def test_a_folder_in_the_place_of_its_config_is_told_so(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="Is a directory") as caught:
        machine.found('huggingface = "."')
    assert caught.value.hint == "name the config.json in it"


def test_another_version_of_the_library_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    founder = machine.found(LLAMA)
    versions = {**dict(founder.manifest.versions), "transformers": "9.9"}
    unknown = founder.manifest.run_file.replace('\\"llama\\"', '\\"llama9\\"')
    assert unknown != founder.manifest.run_file
    manifest = dataclasses.replace(
        founder.manifest,
        versions=tuple(PackageVersion(*each) for each in versions.items()),
        run_file=unknown,
    )
    with pytest.raises(MismatchError, match=r"founded with transformers 9\.9, here is") as caught:
        enter_run(manifest, founder.record, None, machine.box("b"))
    assert caught.value.hint.endswith("-m pip install transformers==9.9`")
    assert "llama9" in caught.value.message


@pytest.mark.parametrize("model", [LLAMA, 'module = "own_models:words"\nsequence_tokens = 8'])
def test_a_manifest_that_pins_nothing_is_refused(machine: Machine, model: str) -> None:
    founder = machine.found(model)
    text = json.loads(founder.manifest.run_file)
    for key in ("huggingface_config", "module_sha256"):
        text["model"].pop(key, None)
    manifest: Manifest = dataclasses.replace(founder.manifest, run_file=json.dumps(text))
    assert run_from_text(manifest.run_file)
    with pytest.raises(MismatchError, match="holds no "):
        run_of(manifest, machine.box("b"))


def test_a_model_too_large_to_be_checked_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Told(Silence):
        def note(self, text: str) -> None:
            told.append(text)

    monkeypatch.setattr(recipes, "CHECKED_MEMORY_SHARE", 0.0)
    options = machine.write(LLAMA)
    machine.console = Told()
    found_run(options, machine.box("a"), load_run_file(options.run_file))
    assert any("NOT compared" in text for text in told)


def test_code_is_taken_from_whoever_has_the_right_bytes(machine: Machine, tmp_path: Path) -> None:
    model = 'module = "own_models:words"\nsequence_tokens = 8'
    options = machine.write(model)
    run, code = pin_source(load_run_file(options.run_file), tmp_path)
    assert code is not None
    network, transports, leases = LocalNetwork(), [], {}
    served: list[bytes | None] = [None, None, b"import os", b"#" * (MAX_CODE_BYTES + 1)]

    def join(content: bytes | None) -> LocalTransport:
        contents = {} if content is None else {blob_name(run): plain_bytes(content)}
        serve = BlobServer(contents.get).serve
        transport = LocalTransport(network, Identity.create(), bytes(16), EventList(), serve)
        transport.start()
        transports.append(transport)
        addresses = ("{}:{}".format(*transport.address),)
        leases[transport.peer_id] = dataclasses.replace(
            a_lease(transport.peer_id), addresses=addresses
        )
        return transport

    try:
        me, *_ = (join(content) for content in served)
        owner = "of no lease"
        assert ask_for_code(me, run, leases, owner) is None
        join(code.content)
        assert ask_for_code(me, run, leases, owner) == code.content
        assert ask_for_code(me, run, leases, owner, lambda: False) is None
        whole = iter([True])
        only = {peer: leases[peer] for peer in [me.peer_id, transports[-1].peer_id]}
        owner = transports[-1].peer_id
        assert ask_for_code(me, run, only, owner, lambda: next(whole, False)) == code.content
    finally:
        for transport in transports:
            transport.close()


def test_trust_names_the_owner() -> None:
    check_trust("owner", None)
    check_trust("owner", "owner")
    with pytest.raises(TrustError, match="you trust friend, but this run is owner's"):
        check_trust("owner", "friend")
