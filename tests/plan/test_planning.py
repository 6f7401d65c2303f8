"""Plans from run and peer files, as shown to a volunteer before joining."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.base.errors import ConfigError, DeviceError, TrustError
from atom.config.load import load_peer_file, parse_run_text
from atom.config.peer_file import PeerFile
from atom.daemon.model.pinning import pin_for_plan, plan_run
from atom.models.gpt3 import GPT3Config, parameter_shapes
from atom.plan import devices, profiling
from atom.plan.choice import Choice
from atom.plan.devices import has_kernels
from atom.plan.footprint import NOTHING_STORED, Footprint, HostMemory
from atom.plan.planning import LivePasses, Plan, PlanRequest
from atom.swap.device_slots import staging_bytes
from atom.swap.schedule import Arrangement
from atom.swarm.records.manifest import SharedText, TextFile

PEERS = Path(__file__).parents[2] / "peers"
RUN = """
[run]
name = "tiny"
[model]
{model}
sequence_tokens = 16
precision = "{precision}"
[data]
source = "text"
paths = ["missing.txt"]
tokenizer = "{tokenizer}"
[batch]
global_sequences = 10
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
state = "{state}"
"""
GPT = 'family = "gpt3"\nlayers = 6\nheads = 2\nmodel_dim = 32'
OWN_RUN = """
[run]
name = "own"
[model]
module = "own_net:make"
[data]
source = "module"
[batch]
global_sequences = 8
micro_batch_sequences = 2
[optimizer]
learning_rate = 1e-3
"""
OWN_CODE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return (x - y).square().mean()


class Samples:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"x": torch.zeros(64), "y": torch.zeros(64)}


def make():
    return Net(), {name: torch.zeros(2, 64) for name in ("x", "y")}, Samples()
"""


@pytest.fixture(autouse=True)
def _no_cache_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plan(
    folder: Path,
    peer: str = "",
    model: str = GPT,
    precision: str = "float32",
    tokenizer: str = "bytes",
    assume: str | None = "rtx3060-12g",
    state: str = "exact",
) -> Plan:
    run_file, peer_file = folder / "run.toml", folder / "peer.toml"
    text = RUN.format(model=model, precision=precision, tokenizer=tokenizer, state=state)
    run_file.write_text(text)
    peer_file.write_text(peer)
    return plan_run(PlanRequest(run_file, peer_file, assume=assume), lambda _: None)


def of_the_cut(
    planned: Plan, choice: Choice, gradients: torch.dtype
) -> tuple[tuple[str, int], ...]:
    nothing = Footprint(HostMemory((), 0), NOTHING_STORED, 0.0)
    return nothing.with_cut(planned.program, choice, gradients, on_gpu=True).host.arenas


def test_a_plan_adds_up(tmp_path: Path) -> None:
    caps = '[network]\nupload = "20 Mbit/s"\ndownload = "100 Mbit/s"\n'
    planned = plan(tmp_path, caps + '[device]\nmemory = "600 kB"\n[host]\nmemory = "1 MB"\n')
    config = GPT3Config(6, 2, 32, sequence_tokens=16, vocabulary_size=256)
    assert planned.parameters == sum(map(math.prod, parameter_shapes(config).values()))
    assert planned.footprint.host.have_bytes == 10**6
    landing = planned.footprint.host.arenas[-1]
    assert landing[0] == "gradients in transit from the device"
    assert landing[1] == staging_bytes(planned.program)
    arenas = planned.footprint.host.total_bytes - landing[1]
    assert arenas == 24 * planned.program.layout.trained_elements
    assert not planned.footprint.fits
    assert planned.footprint.device == planned.choice.memory
    assert planned.footprint.wire_bytes == planned.prediction.line_bytes > 0
    assert planned.choice.cut.limits.device_bytes == 600_000
    assert planned.choice.memory.total_bytes <= 600_000
    names = [s.name for s in planned.program.sub_models]
    assert len(names) == len(planned.choice.cut.pieces) > 1
    assert names[0].startswith("embedding")
    assert names[-1].endswith("head")
    assert planned.work.round_sequences == 10
    assert planned.work.sequence_tokens == 16
    assert planned.work.network_bytes_per_s == 2.5e6, "the slower cap"
    assert planned.work.peers == 4
    assert planned.choice.micro_batches <= 3
    assert planned.footprint.disk.checkpoint_bytes == 0


@pytest.mark.parametrize(
    ("state", "gradients", "element_bytes", "snapshot_bytes"),
    [
        ("exact", "float32", 26, 12),
        ("half", "float32", 20, 8),
        ("half", "bfloat16", 18, 8),
    ],
)
def test_state_and_gradients_are_planned_in_the_numbers_the_run_file_chooses(
    tmp_path: Path, state: str, gradients: str, element_bytes: int, snapshot_bytes: int
) -> None:
    chosen = f'{state}"\ngradients = "{gradients}'
    planned = plan(tmp_path, precision="bfloat16", state=chosen)
    leaving = torch.bfloat16 if gradients == "bfloat16" else torch.float32
    arenas = of_the_cut(planned, planned.choice, leaving)
    assert dict(arenas)["gradients in transit from the device"] == staging_bytes(
        planned.program, leaving
    )
    assert ("gradients in bfloat16" in dict(planned.footprint.host.arenas)) is (
        gradients == "bfloat16"
    )
    elements = planned.program.layout.trained_elements
    cut_bytes = sum(size for _, size in arenas)
    assert planned.footprint.host.total_bytes - cut_bytes == element_bytes * elements
    disk, every = planned.footprint.disk, 50
    assert disk.snapshot_bytes == 2 * snapshot_bytes * elements
    assert disk.result_bytes == (every + 1) * 4 * elements
    assert disk.joiners_bytes == (snapshot_bytes + every * 4) * elements


def test_several_devices_share_a_step_and_the_host(tmp_path: Path) -> None:
    """A step has three micro-batches of four sequences."""
    box = '[device]\nuse = {}\nmemory = "600 kB"\n[host]\nmemory = "64 MB"\n'
    one, two = (plan(tmp_path, box.format(use)) for use in ('"cuda:1"', '["cuda:0", "cuda:1"]'))
    most = one.choice.cut.limits.host_bytes
    assert most is not None
    assert two.choice.cut.limits.host_bytes == most // 2, "each has values that wait"
    assert two.choice.micro_batches <= 2, "of three one has two"
    assert two.choice.memory.total_bytes <= 600_000, "what the peer file says is of each"
    lands_bytes = dict(two.footprint.host.arenas)["gradients in transit from the device"]
    assert lands_bytes == 2 * staging_bytes(two.program)
    assert two.choice.trained_elements == 0
    assert len(one.alone) == 1
    assert two.alone[0] < two.alone[1] == two.gain.alone
    narrow = plan(tmp_path, box.format('["cuda:0", "cuda:1"]'), precision="bfloat16")
    assert len(narrow.choice.cut.pieces) > 1
    lands_bytes = dict(narrow.footprint.host.arenas)["gradients in transit from the device"]
    table_bytes = 4 * 256 * 32
    assert lands_bytes == 2 * (staging_bytes(narrow.program) + table_bytes), "which head ties"
    grid = replace(narrow.choice.allowing(devices=4), arrangement=Arrangement(devices=2))
    lands_bytes = of_the_cut(narrow, grid, torch.float32)[0][1]
    assert lands_bytes == 4 * staging_bytes(narrow.program) + 2 * table_bytes, "once in a group"


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        ("every_rounds = 10", 6),
        ("every_rounds = 10\nkeep = 2\nbest = true", 4),
    ],
)
def test_checkpoints_take_disk_for_what_is_trained(tmp_path: Path, asked: str, files: int) -> None:
    """Checkpoints hold weights only; one more than the kept ones is being written."""
    validated = "[validation]\nevery_rounds = 5\n[train]\nrank = 2"
    text = RUN.format(model=GPT, precision="float32", tokenizer="bytes", state="exact")
    text = text.replace('"bytes"', '"bytes"\nvalidation_fraction = 0.1')
    planned = []
    for more in ("", validated):
        (tmp_path / "run.toml").write_text(text + more)
        (tmp_path / "peer.toml").write_text(f"[checkpoints]\n{asked}")
        request = PlanRequest(tmp_path / "run.toml", tmp_path / "peer.toml", assume="rtx3060-12g")
        if not more and "best" in asked:
            with pytest.raises(ConfigError, match=r"checkpoints\.best: .*tiny is never validated"):
                plan_run(request, lambda _: None)
            continue
        planned.append(plan_run(request, lambda _: None))
        trained = planned[-1].work.parameters
        assert planned[-1].footprint.disk.checkpoint_bytes == 4 * files * trained
    assert planned[-1].work.parameters < planned[-1].parameters / 4, "adapters alone"


@pytest.mark.parametrize(
    ("chosen", "state_bytes"),
    [
        ("exact", 18), ("split", 16), ("half", 12), ('half"\ngradients = "bfloat16', 0),
        ('split"\nname = "adamw-8bit', 0),
        ('exact"\n[update]\ninner_sequences = 4\nrule = "local-steps', 0),
    ],
)  # fmt: skip
def test_what_a_gpu_has_room_for_is_trained_there_if_there_is_a_kernel_for_it(
    tmp_path: Path, chosen: str, state_bytes: int
) -> None:
    """Master weights, moments and sums; beside them the slot has the weights that are computed
    with."""
    planned = plan(tmp_path, precision="bfloat16", state=chosen)
    elements = planned.program.layout.trained_elements
    assert planned.choice.memory.trained_bytes == state_bytes * elements
    assert (planned.prediction.optimizer_s == 0) is (state_bytes > 0)


def test_a_gpu_without_kernels_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: torch.device) -> None:
        raise DeviceError("no kernels for this GPU: libnvrtc.so.13")

    told = list[str]()
    monkeypatch.setattr(devices, "device_kernels", none)
    assert not has_kernels(torch.device("cuda", 0), told.append)
    assert not has_kernels(torch.device("cpu"), told.append)
    assert told == ["no weights are trained on the device: no kernels for this GPU: libnvrtc.so.13"]


def test_a_module_with_samples_of_its_own_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(OWN_CODE)
    (tmp_path / "run.toml").write_text(OWN_RUN)
    planned = plan_run(PlanRequest(tmp_path / "run.toml", assume="h200"), lambda _: None)
    assert planned.parameters == 3 * 65 * 64
    assert planned.work.sequence_tokens == 1


def test_what_a_swarm_trains_is_planned_without_its_founder_s_files(tmp_path: Path) -> None:
    of_file = plan(tmp_path)
    text = (
        (tmp_path / "run.toml").read_text().replace('name = "tiny"', 'name = "tiny"\nrounds = 100')
    )
    run, _ = pin_for_plan(parse_run_text(text), tmp_path, PeerFile())
    shared = SharedText(bytes(32), 256, 0, (TextFile("uint8", 5 * 10**9, ""),))
    request = PlanRequest(run, assume="rtx3060-12g", text=shared, rounds_done=30)
    told = plan_run(request, lambda _: None)
    assert (told.model, told.parameters) == (of_file.model, of_file.parameters)
    assert told.footprint.disk.total_bytes - of_file.footprint.disk.total_bytes == 5 * 10**9
    assert (of_file.rounds_left, told.rounds_left) == (None, 70)
    assert told.run_s == 70 * told.prediction.round_s


def test_a_strangers_code_is_not_run_for_a_plan(tmp_path: Path) -> None:
    (tmp_path / "own_net.py").write_text(OWN_CODE)
    run, _ = pin_for_plan(parse_run_text(OWN_RUN), tmp_path, PeerFile())
    with pytest.raises(TrustError, match="a plan does not execute"):
        plan_run(PlanRequest(run, assume="h200"), lambda _: None)


def test_an_unknown_vocabulary_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocabulary is not known") as failure:
        plan(tmp_path, tokenizer="tokenizer.json")
    assert "vocabulary_size" in failure.value.hint


def test_beside_a_peer_of_the_run_its_passes_count_and_its_memory_is_the_plan_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured beside it, and another model, batch or device is not its concern."""

    def fails(*arguments: object) -> None:
        pytest.fail("measured beside a running peer")

    plan(tmp_path)  # writes the run file
    run, _ = pin_for_plan(parse_run_text((tmp_path / "run.toml").read_text()), tmp_path, PeerFile())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("atom.plan.footprint.free_host_bytes", lambda cap_bytes: 10**10)
    of = run.model, run.batch.micro_batch_sequences, ("cpu",)
    others = [
        LivePasses(9.0, (run.model.model_copy(update={"layers": 7}), *of[1:])),
        LivePasses(9.0, (of[0], 8, of[2])),
        LivePasses(9.0, (*of[:2], ("cuda:0",))),
    ]
    with monkeypatch.context() as busy:
        busy.setattr(profiling, "measure_layers", fails)
        request = PlanRequest(tmp_path / "run.toml", live=[*others, LivePasses(12.5, of)], peers=1)
        live = plan_run(request, lambda _: None)
    assert (live.profile.source, live.profile.doubtful) == ("live", False)
    passes = run.batch.micro_batch_sequences / live.choice.seconds_per_micro_batch
    assert passes == pytest.approx(12.5, rel=0.05)
    monkeypatch.setattr(profiling, "REPEATS", 1)
    measured = plan_run(PlanRequest(tmp_path / "run.toml", live=others, peers=1), lambda _: None)
    assert measured.profile.source == "measured"
    host = measured.footprint.host
    assert live.footprint.host.have_bytes - host.have_bytes in range(1, host.total_bytes + 1)


@pytest.mark.parametrize("size", ["gpu-8gb", "gpu-12gb", "gpu-24gb"])
def test_the_boxes_that_ship_hold_what_they_say(size: str) -> None:
    """Each peer file names a largest run, which fits with weights in bfloat16."""
    runs = {"gpu-8gb": "gpt3-xl", "gpu-12gb": "gpt3-2.7b", "gpu-24gb": "gpt3-2.7b"}
    peer = PEERS / f"{size}.toml"
    request = PlanRequest(PEERS / f"{runs[size]}.toml", peer, assume="rtx4090-24g")
    planned = plan_run(request, lambda _: None)
    assert planned.choice.cut.limits.device_bytes == load_peer_file(peer).device.memory_bytes
    assert planned.choice.memory.total_bytes <= planned.choice.cut.limits.device_bytes
    assert planned.footprint.host.total_bytes <= planned.footprint.host.have_bytes
