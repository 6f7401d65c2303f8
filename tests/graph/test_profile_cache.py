"""Kept profiles: used when they are right, made anew and said so when they are not."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from traced_modules import TiedGPT, tokens_and_targets

from atom.graph.chain import Machine
from atom.graph.profile import (
    LayerProfile,
    OperationSeconds,
    Profile,
    ProfileCache,
    ProfileKey,
)
from atom.graph.trace import trace

LAYER = LayerProfile("blocks.0", 0.5, 1.0, 64, 64, 256)
PROFILE = Profile(
    source="measured",
    device_name="a processor",
    layers=(LAYER,),
    operations=(OperationSeconds(0.5, 1.0), OperationSeconds(1.5, 0.0)),
    link=Machine(2e9, 1e9),
)
KEY = ProfileKey("ab" * 32, "cpu: a processor", "torch.float32", (), "2.9", 2)


class Measured:
    """Counts how often a profile was made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Profile:
        self.times += 1
        return PROFILE


def ask(cache: ProfileCache, measured: Measured, key: ProfileKey = KEY) -> tuple[Profile, str]:
    return cache.get(key, layers=1, operations=2, measure=measured)


def test_measured_once(tmp_path: Path) -> None:
    cache, measured = ProfileCache(tmp_path / "profiles"), Measured()
    assert ask(cache, measured) == (PROFILE, "")
    assert ask(cache, measured) == (PROFILE, "")
    assert measured.times == 1
    assert [path.name for path in (tmp_path / "profiles").iterdir()] == [KEY.file_name]


@pytest.mark.parametrize(
    "change",
    [
        {"graph_hash": "cd" * 32},
        {"device": "cpu: another"},
        {"precision": "torch.bfloat16"},
        {"batch": (("tokens", "torch.int64", (2, 16)),)},
        {"torch_version": "2.10"},
        {"threads": 3},
    ],
)
def test_another_question_has_another_answer(tmp_path: Path, change: dict[str, Any]) -> None:
    cache, measured = ProfileCache(tmp_path), Measured()
    ask(cache, measured)
    ask(cache, measured, dataclasses.replace(KEY, **change))
    assert measured.times == 2


DAMAGED = [
    b"", b"\xff\xfe", b'{"format": 1', b"[" * 100_000, b"null", b"[]", b"{}", b'{"layers": 3}',
]  # fmt: skip


@pytest.mark.parametrize("raw", DAMAGED)
def test_a_damaged_file_is_made_anew_and_said_so(tmp_path: Path, raw: bytes) -> None:
    cache, measured = ProfileCache(tmp_path), Measured()
    (tmp_path / KEY.file_name).write_bytes(raw)
    profile, note = ask(cache, measured)
    assert profile == PROFILE
    assert "measured anew" in note
    assert ask(cache, measured) == (PROFILE, "")
    assert measured.times == 1


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"layers": []},
        {"link": {"load": 1}},
        {"link": {"load_bytes_per_s": 0.0, "gradient_bytes_per_s": 1.0}},
        {"operations": [{"forward_s": -1.0, "backward_s": 0.0}] * 2},
        {"operations": [{"forward_s": "1", "backward_s": 0.0}] * 2},
    ],
)
def test_what_is_no_profile_of_this_model_is_made_anew(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    cache, measured = ProfileCache(tmp_path), Measured()
    ask(cache, measured)
    path = tmp_path / KEY.file_name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    profile, note = ask(cache, measured)
    assert (profile, measured.times) == (PROFILE, 2)
    assert str(path) in note


def test_a_measurement_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> Profile:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        ProfileCache(tmp_path / "new").get(KEY, 1, 2, fails)
    assert not (tmp_path / "new").exists()


def test_a_profile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    bad = dataclasses.replace(PROFILE, operations=(OperationSeconds(float("nan"), 0.0),) * 2)
    with pytest.raises(ValueError, match="JSON"):
        ProfileCache(tmp_path).get(KEY, 1, 2, lambda: bad)
    assert list(tmp_path.iterdir()) == []


def test_no_place_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    measured = Measured()
    profile, note = ask(ProfileCache(tmp_path / "file"), measured)
    assert profile == measured()
    assert "cannot be kept" in note


def test_the_key_of_a_graph() -> None:
    graph = trace(TiedGPT(), tokens_and_targets())
    key = ProfileKey.of(graph, "cpu")
    assert key.graph_hash == graph.graph_hash
    assert key.batch == (
        ("tokens", "torch.int64", (2, 16)),
        ("targets", "torch.int64", (2, 16)),
    )
    assert key.torch_version == torch.__version__
    assert key.threads == torch.get_num_threads()
    assert key.device.startswith("cpu: ")
    assert key.file_name != dataclasses.replace(key, threads=99).file_name
