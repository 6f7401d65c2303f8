"""Stored measurements are used if they are valid; otherwise they are replaced."""

import json
import time
from pathlib import Path

import pytest
import torch
from traced_modules import TiedGPT, tokens_and_targets

from atom.graph.chain import Machine, Seconds
from atom.graph.costs import measured as measured_module
from atom.graph.costs.measured import Measurement, file_name, kept_profile
from atom.graph.costs.seconds import Profile
from atom.graph.trace import trace
from atom.graph.traced import Graph

CPU = torch.device("cpu")
LAYERS = tuple(Seconds(0.5 * number, 1.0) for number in range(5))
LINK = Machine(2e9, 1e9)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(TiedGPT(), tokens_and_targets())


class Measured:
    """Measurement that counts its calls."""

    times, others_share = 0, 0.0

    def __call__(self) -> Measurement:
        self.times += 1
        return LAYERS, LINK, self.others_share

    def asked(self, directory: Path, graph: Graph) -> Profile:
        profile = kept_profile(directory, graph, CPU, self)
        assert (profile.layers, profile.link) == (LAYERS, LINK)
        return profile


def test_measured_once(tmp_path: Path, graph: Graph) -> None:
    measured, folder = Measured(), tmp_path / "profiles"
    assert measured.asked(folder, graph) == measured.asked(folder, graph)
    assert measured.times == 1
    assert list(folder.iterdir()) == [folder / file_name(graph, CPU)]


def test_measured_again_if_asked(tmp_path: Path, graph: Graph) -> None:
    measured = Measured()
    for times, again in ((1, False), (2, True), (2, False)):
        kept_profile(tmp_path, graph, CPU, measured, again)
        assert measured.times == times


def test_a_doubtful_measurement_is_repeated_once_other_programs_rest(
    tmp_path: Path, graph: Graph
) -> None:
    measured = Measured()
    measured.others_share = 0.9
    for times, calm in ((1, True), (1, False), (2, True)):
        profile = kept_profile(tmp_path, graph, CPU, measured, is_calm=lambda calm=calm: calm)
        assert measured.times == times
        assert profile.doubtful
    measured.others_share = 0.1
    for _ in range(2):
        profile = kept_profile(tmp_path, graph, CPU, measured, is_calm=lambda: True)
        assert (measured.times, profile.doubtful) == (3, False)
    assert abs(profile.measured_at - time.time()) < 3600


def test_another_question_has_another_answer(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [graph, trace(TiedGPT(), tokens_and_targets(length=8))]
    asked.append(trace(TiedGPT().half(), tokens_and_targets()))
    names = [file_name(each, CPU) for each in asked]
    for owner, name, value in (
        (torch, "get_num_threads", lambda: 99),
        (torch, "__version__", "1.0"),
        (measured_module, "device_name", lambda device: "another"),
    ):
        monkeypatch.setattr(owner, name, value)
        names.append(file_name(graph, CPU))
    assert len(set(names)) == len(names)


PAIRS = [[0.5, 1.0]] * 8
NO_MEASUREMENT = [
    b"", b"\xff\xfe", b'{"layers": 1', b"[" * 100_000, b"null", b"[]", b"{}", b'{"layers": 3}',
    *(json.dumps(pairs).encode() for pairs in (
        PAIRS[1:], [*PAIRS, PAIRS[0]], [[-1.0, 1.0], *PAIRS[1:]], [["much", 1.0], *PAIRS[1:]],
        [[1.0], *PAIRS[1:]], [*PAIRS[:-2], [0.0, 1.0], PAIRS[0]], [[float("nan"), 1.0], *PAIRS[1:]],
    )),
]  # fmt: skip


@pytest.mark.parametrize("raw", NO_MEASUREMENT)
def test_what_is_no_measurement_of_this_graph_is_made_anew(
    tmp_path: Path, graph: Graph, raw: bytes
) -> None:
    measured = Measured()
    (tmp_path / file_name(graph, CPU)).write_bytes(raw)
    for _ in range(2):
        measured.asked(tmp_path, graph)
    assert measured.times == 1


def test_a_measurement_that_fails_leaves_nothing(tmp_path: Path, graph: Graph) -> None:
    def fails() -> Measurement:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        kept_profile(tmp_path / "new", graph, CPU, fails)
    assert not (tmp_path / "new").exists()


def test_no_place_to_write_to(tmp_path: Path, graph: Graph) -> None:
    (tmp_path / "file").write_text("in the way")
    Measured().asked(tmp_path / "file", graph)
