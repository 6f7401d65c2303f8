"""Modules of user code: allowed results of a factory, its calls, and its error messages."""

import sys
import textwrap
from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError
from atom.models.data.samples import Samples, own_samples
from atom.models.module_source import (
    MAX_CODE_BYTES,
    ModuleSource,
    OwnCode,
    find_code,
    load_factory,
    read_code,
)
from atom.models.source import materialised

WORDS = """
    import torch
    from torch import nn

    class Words(nn.Module):
        def __init__(self, device=None):
            super().__init__()
            self.table = nn.Embedding(8, 4, device=device)
            self.head = nn.Linear(4, 8, bias=False, device=device)
            self.head.weight = self.table.weight
            self.scale = nn.Parameter(torch.full((4,), 0.5))
            self.register_buffer("offset", torch.arange(4.0))

        def forward(self, tokens, targets):
            logits = self.head(self.table(tokens) * self.scale + self.offset)
            return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def text():
        return {name: torch.zeros(2, 6, dtype=torch.int64) for name in ("tokens", "targets")}

    class Numbers:
        def __len__(self):
            return 10
        def __getitem__(self, index):
            return {"x": torch.full((3,), float(index)), "y": torch.tensor(index)}

    def numbers():
        return {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int64)}

    def make():
        return Words(), text()
    def made_on_meta():
        return Words("meta"), text()
    def with_dataset():
        return Words(), numbers(), Numbers()
    def no_tuple():
        return Words()
    def no_module():
        return Words, text()
    def no_batch():
        return Words(), [1]
    def ragged():
        return Words(), {"tokens": torch.zeros(2, 6), "targets": torch.zeros(3, 6)}
    def other_names():
        return Words(), {"a": torch.zeros(2, 6, dtype=torch.int64)}
    def not_tokens():
        return Words(), {name: value.float() for name, value in text().items()}
    def no_dataset():
        return Words(), text(), 5
    class Long(Numbers):
        def __init__(self, count):
            self.count = count
        def __len__(self):
            if not self.count:
                raise TypeError("has no len()")
            return self.count
    def unsure_dataset():
        return Words(), numbers(), Long(0)
    def endless_dataset():
        return Words(), numbers(), Long(2**53 + 1)
    def empty_dataset():
        return Words(), text(), []
    def across():
        words = Words()
        words.scale = nn.Parameter(torch.ones(3, 4).t())
        return words, text()
    def fails():
        raise SystemExit("the moon is full")
    labels = 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words.py").write_text(textwrap.dedent(WORDS))
    return tmp_path


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def code(folder: Path, factory: str = "make") -> OwnCode:
    return read_code(f"words:{factory}", folder / "words.py")


def opened(folder: Path, factory: str = "make", tokens: int | None = 6) -> ModuleSource:
    return ModuleSource(code(folder, factory), 3, tokens)


def test_a_module_keeps_names_ties_and_buffers_and_loses_its_values(folder: Path) -> None:
    source = opened(folder)
    model = source.build(torch.bfloat16)
    assert [name for name, _ in model.named_parameters()] == ["scale", "table.weight"]
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in model.parameters())
    assert model.get_parameter("head.weight") is model.get_parameter("table.weight")
    assert torch.equal(model.get_buffer("offset"), torch.arange(4.0).bfloat16())
    assert {n: tuple(v.shape) for n, v in source.example_batch(5).items()} == {
        "tokens": (5, 6),
        "targets": (5, 6),
    }


@pytest.mark.parametrize("factory", ["make", "made_on_meta"])
def test_first_values_follow_from_the_seed(folder: Path, factory: str) -> None:
    source = opened(folder, factory)
    torch.manual_seed(1)
    first = materialised(source, torch.float32, seed=4)
    torch.manual_seed(2)
    torch.set_num_threads(3)
    again = materialised(opened(folder, factory), torch.float32, seed=4)
    torch.set_num_threads(1)
    other = materialised(source, torch.float32, seed=5)
    for name, value in first.named_parameters():
        assert torch.equal(value, again.get_parameter(name))
    assert first.get_parameter("table.weight").std() > 0.5
    assert not torch.equal(first.get_parameter("table.weight"), other.get_parameter("table.weight"))
    assert torch.equal(first.get_parameter("scale"), torch.full((4,), 0.5))
    assert first.get_parameter("head.weight") is first.get_parameter("table.weight")


def test_a_parameter_on_meta_without_an_initialisation_is_named(tmp_path: Path) -> None:
    bare = WORDS.replace("torch.full((4,), 0.5)", 'torch.empty(4, device="meta")')
    (tmp_path / "words.py").write_text(textwrap.dedent(bare))
    with pytest.raises(ConfigError, match="gives scale no value"):
        materialised(opened(tmp_path, "made_on_meta"), torch.float32, seed=4)


def test_parameters_come_contiguous_whatever_the_factory_made(folder: Path) -> None:
    built = opened(folder, "across").build(torch.float32)
    assert built.get_parameter("scale").shape == (4, 3)
    assert built.get_parameter("scale").is_contiguous()


def test_text_comes_shifted_or_twice(folder: Path, tmp_path: Path) -> None:
    tokens, targets = torch.arange(6)[None], torch.arange(1, 7)[None]
    batch = opened(folder).text_batch({"tokens": tokens, "targets": targets})
    assert batch["tokens"] is tokens
    assert batch["targets"] is targets
    twice = WORDS.replace('("tokens", "targets")', '("input_ids", "labels")')
    (tmp_path / "words.py").write_text(textwrap.dedent(twice))
    batch = opened(tmp_path).text_batch({"tokens": tokens, "targets": targets})
    assert torch.equal(batch["input_ids"], tokens)
    assert torch.equal(batch["labels"], tokens)
    assert batch["labels"] is not tokens


@pytest.mark.parametrize(
    ("factory", "what", "hint"),
    [
        ("no_tuple", "returned an object of type Words", "return module, example_batch"),
        ("no_module", "returned an object of type type, ", "return module, example_batch"),
        ("no_batch", "type list as its example batch", '{"tokens"'),
        ("ragged", "entries of [2, 3] sequences", "first dimension"),
        ("other_names", "has a; text comes as tokens and targets or input_ids", "dataset"),
        ("not_tokens", "tokens: float32 [2, 6]", "int64"),
        (
            "no_dataset",
            "a dataset without a length: TypeError: object of type 'int'",
            "__getitem__",
        ),
        ("empty_dataset", "a dataset of 0 samples", "must return 1 to"),
        ("unsure_dataset", "a dataset without a length: TypeError: has no len", "__len__"),
        ("endless_dataset", "a dataset of 9,007,199,254,740,993 samples", "endless"),
        ("with_dataset", "returned a dataset", 'source = "module"'),
        ("fails", "SystemExit: the moon is full at", "without arguments"),
        ("labels", "words.py defines no function labels", "def labels()"),
        ("missing", "defines no function missing", "def missing()"),
    ],
)
def test_a_factory_is_told_what_is_wrong(folder: Path, factory: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(folder, factory)
    assert what in caught.value.message
    assert hint in caught.value.hint


def test_data_and_text_go_with_what_the_run_says(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokens: int64 \[2, 6\]") as caught:
        opened(folder, tokens=7)
    assert caught.value.hint == "make it int64 [sequences, 7], or set [model] sequence_tokens"
    assert opened(folder, "with_dataset", None).dataset is not None
    with pytest.raises(ConfigError, match="returned no dataset"):
        opened(folder, "make", None)


# ---- the file


def test_code_is_found_beside_the_run_file_and_named_by_its_bytes(folder: Path) -> None:
    inner = folder / "atom_test_inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("")
    (inner / "model.py").write_text("def make():\n    return 7\n")
    found = find_code("atom_test_inner.model:make", folder)
    assert found.path == inner / "model.py"
    assert load_factory(found)() == 7
    same = OwnCode(found.entry, found.content, folder / "own_code.py")
    assert same.sha256 == found.sha256
    (inner / "model.py").write_text("def make():\n    return 8\n")
    assert load_factory(found)() == 7, "what runs is what was hashed"


@pytest.mark.parametrize("entry", ["no.such.package:make", "sys:exit"])
def test_a_module_that_is_not_there(entry: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        find_code(entry, tmp_path)
    assert str(tmp_path) in caught.value.hint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import no_such_package_here\n", "ModuleNotFoundError.* at .*own.py:1"),
        ("def make(:\n", "SyntaxError.* at .*own.py:1"),
        ("x = 1\nraise OSError('no')\n", r"OSError: no at .*own.py:2 \(raise OSError"),
        ("import sys\nsys.exit('usage')\n", r"SystemExit: usage at .*own.py:2 \(sys.exit"),
    ],
)
def test_code_that_does_not_load_is_told_with_its_place(
    text: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        load_factory(read_code("own:make", path))


def test_code_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("#" * (MAX_CODE_BYTES + 1))
    with pytest.raises(ConfigError, match="longer than 64 KiB"):
        read_code("own:make", path)


# ---- the samples


def samples(folder: Path, fraction: float = 0.2) -> Samples:
    source = opened(folder, "with_dataset", None)
    return own_samples(source.dataset, source.example, fraction, seed=1)


def test_samples_are_dealt_in_order_of_positions(folder: Path) -> None:
    own = samples(folder)
    assert str(own.amount) == "8 samples to train on, 2 held back"
    epoch = own.batch(range(8))
    assert epoch["x"].shape == (8, 3)
    assert sorted(epoch["y"].tolist()) == list(range(8)), "the last two are held back"
    assert torch.equal(epoch["x"][:, 0], epoch["y"].float())
    picked = own.batch([5, 2])
    assert torch.equal(picked["y"], epoch["y"][[5, 2]])
    held = torch.cat([batch["y"] for batch in own.validation_batches("", 2, 2)])
    assert sorted(held.tolist()) == [8, 8, 9, 9]


def test_samples_with_nothing_held_back(folder: Path) -> None:
    own = samples(folder, 0.0)
    assert own.sampler.orders[0].windows == 10
    assert not own.validation
    assert own.digest != samples(folder).digest
    with pytest.raises(ConfigError, match="of 10 samples is none"):
        samples(folder, 0.05)


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ({"x": torch.zeros(3)}, "is not a dict of x, y"),
        ({"x": torch.zeros(4), "y": torch.tensor(1)}, r"x is not torch.float32 \[3\]"),
        ({"x": torch.zeros(3), "y": torch.tensor(1.0)}, r"y is not torch.int64 \[\]"),
    ],
)
def test_a_sample_of_another_make_is_named(sample: object, what: str) -> None:
    like = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(ConfigError, match=what):
        own_samples([sample], like, 0.0, seed=1)
