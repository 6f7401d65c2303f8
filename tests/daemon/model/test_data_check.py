"""Who has other data than the run hears how much it has, and what to get instead."""

from pathlib import Path

import pytest

from atom.base.errors import MismatchError
from atom.config.model_and_data import Data
from atom.daemon.model.data_check import check_data
from atom.models.data.dataset import Dataset, open_dataset
from atom.models.data.files import text_corpus
from atom.swarm.records.manifest import Manifest


def a_manifest(data_digest: str, amount: tuple[int, int, int] | None = None) -> Manifest:
    return Manifest(
        "run", "owner", "", "", "", (), data_digest, b"s" * 32, b"i" * 16, 1.0, amount
    )  # fmt: skip


def samples_of(text: str, folder: Path, held_out: float = 0.0) -> Dataset:
    (folder / "text.txt").write_text(text)
    return open_dataset(
        text_corpus([folder / "text.txt"]), "bytes", validation_fraction=held_out,
        sequence_tokens=8, seed=1, cache_folder=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"source": "text", "paths": ("a.txt", "more/*")}, "the founder named a.txt, more/*"),
        ({"source": "python-stdlib"}, "founder's build of Python"),
        ({"source": "datasets", "path": "owner/name"}, "the founder's table owner/name"),
        ({"source": "module"}, "the dataset of the owner's module"),
    ],
)
def test_what_is_here_and_what_is_wanted(
    data: dict[str, object], wanted: str, tmp_path: Path
) -> None:
    section = Data.model_validate(data)
    samples = samples_of("a peer gives " * 100, tmp_path)
    for equal in (samples.digest, ""):
        check_data(samples, section, a_manifest(equal))
    with pytest.raises(MismatchError, match="here are 1,300 tokens, 162 sequences to") as refused:
        check_data(samples, section, a_manifest("another"))
    assert wanted in refused.value.hint


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ((1313, 164, 0), "to train on; the run has 1,313 tokens, 164 sequences to train on"),
        ((1300, 162, 0), "162 sequences to train on, as many, but others"),
        (None, "162 sequences to train on"),
    ],
)
def test_how_much_the_run_has(
    amount: tuple[int, int, int] | None, said: str, tmp_path: Path
) -> None:
    manifest = a_manifest("another", amount)
    section = Data.model_validate({"source": "python-stdlib"})
    with pytest.raises(MismatchError) as refused:
        check_data(samples_of("a peer gives " * 100, tmp_path), section, manifest)
    assert refused.value.message.endswith(said)


def test_what_is_held_back_is_told_beside(tmp_path: Path) -> None:
    told = samples_of("a peer gives " * 100, tmp_path, held_out=0.5).amount
    assert str(told) == "650 tokens, 81 sequences to train on, 650 tokens held back"
    one = samples_of("nine bytes"[:9], tmp_path).amount
    assert str(one) == "9 tokens, 1 sequence to train on"
