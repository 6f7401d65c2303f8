"""The benchmarks run, at toy size, and the JSON has its shape. Speeds are not judged."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from programs import run, torch_alone


def check_timing(timing: dict[str, Any], runs: int) -> None:
    assert len(timing["runs_s"]) == runs
    assert 0 < timing["fastest_s"] <= timing["median_s"] <= timing["slowest_s"]


def test_ring_beside_gloo() -> None:
    body = run(
        "ring.run", "--members", "2", "--megabytes", "0.1", "--runs", "2",
        "--sides", "gloo", "tls/int8/parts",
        says="x gloo's speed",
    )  # fmt: skip
    assert [row["side"] for row in body["rows"]] == ["gloo", "tls/int8/parts"]
    assert body["rows"][0]["x gloo's speed"] == 1
    for row in body["rows"]:
        check_timing(row["seconds"], runs=2)
        assert row["CPU ms per MB"] > 0


def test_a_state_from_donors_that_train() -> None:
    body = run(
        "state.run", "--megabytes", "9", "--donors", "2", "--mbit", "10000", "--rounds", "2",
        "--ring-megabytes", "0.1", "--pause-s", "0",
    )  # fmt: skip
    one, both, alone, beside = body["rows"]
    assert (one["donors"], both["donors"]) == (1, 2)
    assert min(row["of the limit"] for row in (one, both)) > 0
    medians = [rounds["seconds"]["median_s"] for rounds in (beside, alone)]
    assert beside["ratio"] == pytest.approx(medians[0] / medians[1])


def test_the_optimizer_beside_torchs() -> None:
    body = run("optimizer.run", "--elements", "10000", "--threads", "2", "--runs", "2")
    sides = {row["side"]: row for row in body["rows"]}
    baseline = sides["torch fused"]["seconds"]["median_s"]
    for side in sides.values():
        check_timing(side["seconds"], runs=2)
        assert side["ratio of seconds"] == pytest.approx(side["seconds"]["median_s"] / baseline)


@pytest.mark.parametrize(
    ("program", "argument", "value"),
    [
        ("optimizer.run", "--runs", "0"),
        ("swap.run", "--json", "/no/such/folder/x.json"),
        ("devices.run", "--inter", "3"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    program: str,
    argument: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [program, argument, value])
    with pytest.raises(SystemExit, match=r"^2$"):
        import_module(f"benchmarks.{program}").main()
    assert value in capsys.readouterr().err


def test_the_cost_of_a_crowd() -> None:
    (row,) = run("scale.virtual", "--peers", "4", "--rounds", "1", says="early")["rows"]
    assert 0 < row["trigger_s"] <= row["latest_trigger_s"] <= row["round_s"]
    assert (row["peers"], row["early"]) == (4, 0)
    assert row["dht_kb_per_peer_s"] > 0


def test_a_swarm_of_one_beside_plain_pytorch() -> None:
    body = run("scale.one_peer", "--rounds", "3", "--turns", "1")
    ours, theirs = (row["seconds a round"]["median_s"] for row in body["rows"])
    assert body["rows"][0]["ratio"] == pytest.approx(ours / theirs)


def test_every_amount_of_memory_is_estimated_and_measured(tmp_path: Path) -> None:
    rows = run(
        "plan.accuracy", "--models", "tiny", "--runs", "2", "--micro-batches", "2",
        env=torch_alone(tmp_path),
    )["rows"]  # fmt: skip
    assert [row["memory"] for row in rows] == ["swapped", "partly", "resident"]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["foretold_s"] / row["measured_s"])
    assert rows[0]["resident"] < rows[2]["resident"] == rows[2]["sub-models"]
    assert rows[0]["device_bytes"] < rows[2]["device_bytes"]


def test_a_peers_devices_beside_pytorchs_own_ways() -> None:
    ours, theirs = run(
        "devices.run", "--devices", "2", "--passes", "2", "--steps", "1", "--blocks", "2",
        "--width", "64", "--block-ms", "1", "--sides", "Atom", "FSDP2",
        says="device MB",
    )["rows"]  # fmt: skip
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)
    assert ours["same bits"]
    assert min(ours["micro-batches/s"], ours["device MB"], ours["beside foretold"]) > 0
