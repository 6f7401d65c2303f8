"""Measured and assumed profiles, made-up inputs, and rates of copies."""

import functools
import json
import math
import time
import weakref
from pathlib import Path

import pytest
import torch
from big_and_small import GPT3_NAMES, HF_NAMES, bert, llama, tokens
from traced_modules import ZOO, TiedGPT, tokens_and_targets

from atom.base.errors import DeviceError
from atom.graph.chain import Machine, Seconds
from atom.graph.costs import measured
from atom.graph.costs import measured as measured_module
from atom.graph.costs.measured import (
    Measurement,
    file_name,
    index_bound,
    kept_profile,
    measure_layers,
    measure_link,
)
from atom.graph.costs.seconds import DEVICES, Profile, assume_graph, assumed_device, measured_graph
from atom.graph.layers import layers_of
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, GPT3Config

LINK = Machine(1e9, 1e9)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_often_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable extra samples: such small models would be measured forty times."""
    monkeypatch.setattr(measured, "_MIN_SAMPLING_S", 0.0)


def check(profile: Profile, graph: Graph) -> None:
    """Check the invariants of every profile."""
    assert len(profile.layers) == len(layers_of(graph))
    assert len(profile.chain.operations) == len(graph.calls)
    for going in (True, False):
        by_layer = [x.forward_s if going else x.backward_s for x in profile.layers]
        by_call = [x.forward_s if going else x.backward_s for x in profile.chain.operations]
        assert sum(by_call) == pytest.approx(sum(by_layer))
        assert all(math.isfinite(seconds) and seconds >= 0 for seconds in by_call)


def measure(graph: Graph) -> Profile:
    return measured_graph(graph, CPU, measure_layers(graph, CPU), LINK)


@functools.cache
def gpt3_graph(dtype: torch.dtype = torch.float32) -> Graph:
    config = GPT3Config(3, 4, 64, sequence_tokens=32, vocabulary_size=128)
    return trace(GPT3(config, device="meta", dtype=dtype), tokens(*GPT3_NAMES))


def test_measured() -> None:
    graph = gpt3_graph()
    profile = measure(graph)
    check(profile, graph)
    assert profile.source == "measured"
    first, second = profile.layers[1:3]
    assert first is second, "equal layers are measured once"
    assert all(layer.forward_s > 0 for layer in profile.layers)


@pytest.mark.parametrize("name", ["buffers", "regions", "rotary", "bert"])
def test_every_graph_is_measured(name: str) -> None:
    make, batch = ZOO.get(name) or (bert, lambda seed: tokens(*HF_NAMES))
    graph = trace(make(), batch(0))
    check(measure(graph), graph)


def test_only_one_layers_parameters_exist_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    live = peak = 0
    make_up = measured._values

    def counted(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        nonlocal live, peak
        tensor = make_up(numel, dtype, device)
        size = tensor.numel() * tensor.itemsize
        live += size
        peak = max(peak, live)
        weakref.finalize(tensor.untyped_storage(), freed, size)
        return tensor

    def freed(size: int) -> None:
        nonlocal live
        live -= size

    monkeypatch.setattr(measured, "_values", counted)
    config = GPT3Config(8, 4, 256, sequence_tokens=8, vocabulary_size=64)
    model = GPT3(config, device="meta")
    batch = {name: torch.zeros(1, 8, dtype=torch.int64) for name in GPT3_NAMES}
    graph = trace(model, batch)
    measure_layers(graph, torch.device("cpu"), repeats=1)
    block = (12 * 256**2 + 13 * 256) * 4
    assert peak == block
    assert live == 0


def test_measuring_draws_no_random_number_of_the_callers() -> None:
    graph = trace(TiedGPT(dropout=0.1), tokens_and_targets())
    before = torch.get_rng_state()
    measure(graph)
    assert torch.equal(before, torch.get_rng_state())


def test_made_up_integers_are_valid_and_spread() -> None:
    for graph in (gpt3_graph(), trace(llama(), tokens(*HF_NAMES))):
        layers = layers_of(graph)
        assert [index_bound(graph, layers[end]) for end in (0, 1, -1)] == [128, 1, 128]


def test_rates_of_copies() -> None:
    link = measure_link("cpu", repeats=1)
    for rate in (link.load_bytes_per_s, link.gradient_bytes_per_s):
        assert 0 < rate < math.inf


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_assumed(device: str) -> None:
    graph = gpt3_graph(torch.float16)
    profile = assume_graph(graph, device)
    check(profile, graph)
    assert profile.source == "assumed"
    first, second = profile.layers[1:3]
    assert first.forward_s == second.forward_s


def test_a_backward_costs_twice_its_forward_where_products_rule() -> None:
    config = GPT3Config(1, 16, 4096, sequence_tokens=2048, vocabulary_size=256)
    batch = {name: torch.zeros(4, 2048, dtype=torch.int64) for name in GPT3_NAMES}
    graph = trace(GPT3(config, device="meta", dtype=torch.float16), batch)
    block = assume_graph(graph, "v100-32g").layers[1]
    assert 1.9 < block.backward_s / block.forward_s < 2.3
    products = 2 * 4 * 2048 * 12 * 4096**2
    rate = DEVICES["v100-32g"].rates.flops_per_s[torch.float16]
    assert products / rate < block.forward_s < 1.6 * products / rate


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DeviceError, match="'rtx5090' is not a device") as caught:
        assume_graph(gpt3_graph(), "rtx5090")
    for name in DEVICES:
        assert name in caught.value.hint


@pytest.mark.parametrize("name", ["gtx1080ti-11g", "v100-32g"])
def test_old_cards_have_no_bfloat16(name: str) -> None:
    with pytest.raises(DeviceError, match="does not compute in bfloat16") as caught:
        assume_graph(gpt3_graph(torch.bfloat16), name)
    assert "float16" in caught.value.hint
    assert assumed_device(name, torch.float16).name == name


# --- stored measurements ---

CPU = torch.device("cpu")
LAYERS = tuple(Seconds(0.5 * number, 1.0) for number in range(3))
LINK = Machine(2e9, 1e9)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(TiedGPT(layers=1), tokens_and_targets())


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
    asked = [graph, trace(TiedGPT(layers=1), tokens_and_targets(length=8))]
    asked.append(trace(TiedGPT(layers=1).half(), tokens_and_targets()))
    names = [file_name(each, CPU) for each in asked]
    for owner, name, value in (
        (torch, "get_num_threads", lambda: 99),
        (torch, "__version__", "1.0"),
        (measured_module, "device_name", lambda device: "another"),
    ):
        monkeypatch.setattr(owner, name, value)
        names.append(file_name(graph, CPU))
    assert len(set(names)) == len(names)


PAIRS = [[0.5, 1.0]] * 6
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
