"""The device's share of the optimizer's step, as a daemon and a plan decide on it."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.errors import DeviceError
from atom.cli.shell.terminal import stdout_console
from atom.cli.train.plan_text import plan_text
from atom.config.load import load_run_file
from atom.daemon.console import Silence
from atom.daemon.fitting import device_choice, planning
from atom.daemon.fitting.device_choice import Question
from atom.daemon.fitting.step_share import State, arrange, assumed_rates, share_text
from atom.daemon.peer.box import open_box
from atom.daemon.peer.founding import StartOptions, found_run
from atom.graph.ir import ParameterLayout
from atom.graph.profile.assumed import assume_graph
from atom.graph.profile.devices import DEVICES
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config
from atom.optim.device_adamw import DeviceAdamW
from atom.swap.state_form import StateForm
from atom.swap.step_rates import StepRates
from tests.daemon.tiny_run import TINY_PEER, TINY_RUN, TINY_TEXT
from tests.event_file import read_events

STATE = State(ParameterLayout.of({"weight": (10, 10)}), torch.bfloat16, StateForm.EXACT)
FAST = StepRates(1e12, 1e12, 1e12, 1e12)
SLOW_HOST = replace(FAST, host=1.0, host_beside=1.0)


@functools.cache
def question(device_bytes: int = 2**24) -> Question:
    config = GPT3Config(2, 2, 16, sequence_tokens=8, vocabulary_size=29)
    tokens = torch.zeros(2, 8, dtype=torch.long)
    graph = trace(GPT3(config, device="meta"), {"tokens": tokens, "targets": tokens})
    profile = assume_graph(graph, "rtx3060-12g")
    return device_choice.question(graph, profile, device_bytes, 2, on_gpu=True)


def test_nothing_is_streamed_where_nothing_is_gained() -> None:
    asked = question()
    for wanted, rates in ((None, None), (None, FAST), (0.0, SLOW_HOST), (0.0, None)):
        found = arrange(asked, STATE, wanted, rates)
        assert found.question is asked
        assert found.choice.memory.step_bytes == 0
        assert found.share is None or found.share.share == 0
    assert found.share is None
    by_host = arrange(asked, STATE, None, FAST).share
    assert by_host is not None
    assert "host takes the whole" in share_text(by_host)


@pytest.mark.parametrize(("wanted", "rates"), [(None, SLOW_HOST), (0.3, FAST), (0.3, None)])
def test_a_share_takes_its_memory_from_the_model(
    wanted: float | None, rates: StepRates | None
) -> None:
    asked = question()
    found = arrange(asked, STATE, wanted, rates)
    assert found.share is not None
    assert found.share.share == wanted or found.share.share > 0.9
    assert found.choice.memory.step_bytes == STATE.device_bytes > 0
    assert found.choice.memory.total_bytes <= asked.limits.device_bytes
    assert found.question.limits.device_bytes == asked.limits.device_bytes - STATE.device_bytes
    assert share_text(found.share).startswith(f"the device takes {found.share.share:.0%}")


def test_without_room_for_it_a_share_is_left_out_unless_it_was_asked_for() -> None:
    large = replace(STATE, layout=ParameterLayout.of({"weight": (10**4, 10**3)}))
    found = arrange(question(), large, None, SLOW_HOST)
    assert found.share is not None
    assert found.share.share == 0
    with pytest.raises(DeviceError, match="leaves no memory") as refused:
        arrange(question(), large, 0.5, None)
    assert "optimizer_share" in refused.value.hint


@pytest.mark.parametrize("form", StateForm)
def test_assumed_rates_are_bound_by_memory_link_or_launching(form: StateForm) -> None:
    state = replace(STATE, form=form)
    rates = {name: assumed_rates(device, state, 4e9) for name, device in DEVICES.items()}
    assert all(each.host == each.host_beside == 4e9 for each in rates.values())
    assert 1e9 < rates["h200"].device < 5e9
    assert rates["rtx3060-12g"].device < rates["rtx4090-24g"].device < rates["h200"].device
    assert rates["gtx1080ti-11g"].link < rates["h200"].link < 47e9 / 8


class Notes(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_a_device_that_computes_otherwise_is_told_in_the_log_and_in_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def otherwise(adamw: DeviceAdamW, value: Tensor, out: Tensor) -> None:
        out.copy_(value.sqrt().nextafter(torch.tensor(1.0)))

    monkeypatch.setattr(DeviceAdamW, "_square_root", otherwise)
    (tmp_path / "text.txt").write_text(TINY_TEXT)
    (tmp_path / "run.toml").write_text(TINY_RUN.replace('"tiny"', '"sharing"'))
    (tmp_path / "peer.toml").write_text(TINY_PEER.format(device="optimizer_share = 0.5"))
    box, notes = open_box("sharing", tmp_path / "peer.toml", tmp_path / "state"), Notes()
    try:
        run_file = tmp_path / "run.toml"
        found_run(StartOptions(run_file), box, load_run_file(run_file), notes)
        (event,) = read_events(box.state.events)
    finally:
        box.state.unlock()
    assert "the device takes 50% of the optimizer step, the host the rest" in notes.lines
    why = "the device does not compute as the host does"
    assert any(f"takes no share of the optimizer step: {why}" in line for line in notes.lines)
    assert event["event"] == "unstreamed"
    assert str(event["reason"]).startswith(why)


def test_a_plan_tells_the_share_and_the_rates_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "step_rates", lambda *given: StepRates(4e9, 4e9, 3e9, 5e9))
    (tmp_path / "text.txt").write_text(TINY_TEXT)
    (tmp_path / "run.toml").write_text(TINY_RUN)
    (tmp_path / "peer.toml").write_text(TINY_PEER.format(device="optimizer_share = 0.5"))
    plan = planning.plan_run(
        planning.PlanRequest(tmp_path / "run.toml", tmp_path / "peer.toml"), lambda note: None
    )
    assert plan.share is not None
    assert plan.share.share == 0.5
    assert plan.surroundings.adamw_elements_per_s == pytest.approx(6e9)
    assert plan.choice.memory.step_bytes > 0
    monkeypatch.setenv("COLUMNS", "200")
    console = stdout_console()
    with console.capture() as captured:
        console.print(plan_text(plan, 200))
    assert "6,000 million parameters per second, the device takes 50%" in captured.get()
    assert "host 4,000, link 3,000, device 5,000" in captured.get()
    assert "optimizer's share" in captured.get()
