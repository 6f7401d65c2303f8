"""Kept measurements: used when they are right, made anew and said so when they are not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from traced_modules import TiedGPT, tokens_and_targets

from atom.graph.chain import Machine, Seconds
from atom.graph.profile.measured import Measurement, device_name, file_name, kept_profile
from atom.graph.profile.seconds import Profile
from atom.graph.trace import trace
from atom.graph.traced import Graph

CPU = torch.device("cpu")
LAYERS = tuple(Seconds(0.5 * number, 1.0) for number in range(5))
LINK = Machine(2e9, 1e9)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(TiedGPT(), tokens_and_targets())


class Measured:
    """Counts how often it was measured."""

    def __init__(self, layers: tuple[Seconds, ...] = LAYERS) -> None:
        self.layers = layers
        self.times = 0

    def __call__(self) -> Measurement:
        self.times += 1
        return self.layers, LINK

    def asked(self, directory: Path, graph: Graph) -> tuple[Profile, str]:
        profile, note = kept_profile(directory, graph, CPU, self)
        assert (profile.layers, profile.link) == (self.layers, LINK)
        return profile, note


def path_in(directory: Path, graph: Graph) -> Path:
    return directory / file_name(graph, CPU, device_name(CPU))


def test_measured_once(tmp_path: Path, graph: Graph) -> None:
    measured = Measured()
    first = measured.asked(tmp_path / "profiles", graph)
    assert first == measured.asked(tmp_path / "profiles", graph)
    assert first[1] == ""
    assert measured.times == 1
    assert list((tmp_path / "profiles").iterdir()) == [path_in(tmp_path / "profiles", graph)]


def test_another_question_has_another_answer(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [file_name(graph, CPU, "a processor"), file_name(graph, CPU, "another")]
    names.append(file_name(graph, torch.device("cuda"), "another"))
    other = trace(TiedGPT(), tokens_and_targets(length=8))
    names.append(file_name(other, CPU, "a processor"))
    names.append(file_name(trace(TiedGPT().half(), tokens_and_targets()), CPU, "a processor"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    names.append(file_name(graph, CPU, "a processor"))
    monkeypatch.setattr(torch, "__version__", "1.0")
    names.append(file_name(graph, CPU, "a processor"))
    assert len(set(names)) == len(names)


DAMAGED = [
    b"", b"\xff\xfe", b'{"format": 1', b"[" * 100_000, b"null", b"[]", b"{}", b'{"layers": 3}',
]  # fmt: skip


@pytest.mark.parametrize("raw", DAMAGED)
def test_a_damaged_file_is_made_anew_and_said_so(tmp_path: Path, graph: Graph, raw: bytes) -> None:
    measured = Measured()
    path_in(tmp_path, graph).write_bytes(raw)
    assert "measured anew" in measured.asked(tmp_path, graph)[1]
    assert measured.asked(tmp_path, graph)[1] == ""
    assert measured.times == 1


@pytest.mark.parametrize(
    "change",
    [
        {"layers": []},
        {"layers": [[1.0, 1.0]] * 4},
        {"layers": [[-1.0, 1.0]] * 5},
        {"layers": [["much", 1.0]] * 5},
        {"layers": [[1.0]] * 5},
        {"link": {"load": 1}},
        {"link": [0.0, 1.0]},
    ],
)
def test_what_is_no_measurement_of_this_graph_is_made_anew(
    tmp_path: Path, graph: Graph, change: dict[str, Any]
) -> None:
    measured, path = Measured(), path_in(tmp_path, graph)
    measured.asked(tmp_path, graph)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert str(path) in measured.asked(tmp_path, graph)[1]
    assert measured.times == 2


def test_a_measurement_that_fails_leaves_nothing(tmp_path: Path, graph: Graph) -> None:
    def fails() -> Measurement:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        kept_profile(tmp_path / "new", graph, CPU, fails)
    assert not (tmp_path / "new").exists()


def test_a_measurement_that_cannot_be_written_leaves_nothing(tmp_path: Path, graph: Graph) -> None:
    bad = Measured((Seconds(float("nan"), 0.0),) * 5)
    with pytest.raises(ValueError, match="JSON"):
        kept_profile(tmp_path, graph, CPU, bad)
    assert list(tmp_path.iterdir()) == []


def test_no_place_to_write_to(tmp_path: Path, graph: Graph) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot be kept" in Measured().asked(tmp_path / "file", graph)[1]
