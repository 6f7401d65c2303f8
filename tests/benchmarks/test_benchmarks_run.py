"""The benchmarks run, at toy size, and their JSON has its shape. Speeds are nobody's business."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from programs import run, started, torch_alone

TIMING = {"median_s", "fastest_s", "slowest_s", "runs_s"}


def check_timing(timing: dict[str, Any], runs: int) -> None:
    assert set(timing) == TIMING
    assert len(timing["runs_s"]) == runs
    assert 0 < timing["fastest_s"] <= timing["median_s"] <= timing["slowest_s"]


def test_ring_beside_gloo() -> None:
    sides = ["gloo", "tls", "tls/int8/parts", "tls/bfloat16"]
    body = run(
        "ring.py", "--members", "2", "--megabytes", "0.1", "0.5", "--runs", "2", "--sides", *sides,
        says="x gloo's speed",
    )  # fmt: skip
    assert (body["benchmark"], body["members"], body["mbit"]) == ("ring", 2, None)
    assert [round(result["megabytes"], 1) for result in body["results"]] == [0.1, 0.5]
    for result in body["results"]:
        assert list(result["sides"]) == sides
        for side in result["sides"].values():
            check_timing(side["seconds"], runs=2)
            assert side["cpu_ms_per_mb"] > 0
        assert result["sides"]["gloo"]["times_gloos_speed"] == 1


def test_codecs_beside_int4() -> None:
    body = run("codecs.py", "--elements", "8192", "--runs", "2", says="x int4's speed")
    assert list(body["results"]) == ["int4", "int8", "sparse"]
    for result in body["results"].values():
        assert 0 < result["bytes_per_number"] < 2
        for what in ("encode", "add", "decode"):
            check_timing(result[what], runs=2)


def test_a_state_from_donors_who_train() -> None:
    body = run(
        "state.py", "--megabytes", "9", "--donors", "2", "--mbit", "0", "--rounds", "2",
        "--ring-megabytes", "0.1", "--pause-s", "0",
    )  # fmt: skip
    assert (body["benchmark"], body["megabytes"], body["mbit"]) == ("state", 9.0, 0.0)
    assert [transfer["donors"] for transfer in body["transfers"]] == [1, 2]
    for transfer in body["transfers"]:
        check_timing(transfer["seconds"], runs=1)
        assert transfer["mbit_per_s"] > 0
    rounds = body["rounds"]
    for side in ("alone", "beside"):
        check_timing(rounds[side], runs=2)
    assert rounds["beyond_what_is_given"] == pytest.approx(rounds["ratio"] / (1 + rounds["given"]))


def test_the_optimizer_beside_torchs() -> None:
    body = run("optimizer.py", "--elements", "10000", "--threads", "2", "--runs", "2")
    assert (body["benchmark"], body["threads"]) == ("optimizer", 2)
    assert {side["elements"] for side in body["sides"].values()} == {9984}
    sides = body["sides"]
    baseline = sides["torch fused"]["seconds"]["median_s"]
    for side in sides.values():
        check_timing(side["seconds"], runs=2)
        assert side["ratio"] == pytest.approx(side["seconds"]["median_s"] / baseline)
    moved = {name: side["moved_bytes_per_parameter"] for name, side in sides.items()}
    assert moved["ours float32"] == 28
    assert moved["ours exact, bfloat16 gradient"] == 28
    assert moved["ours split, float32 gradient"] == 28
    assert moved["ours half, bfloat16 gradient"] == 18


def test_a_step_under_the_passes_beside_one_between_them() -> None:
    body = run("after_commit.py", "--layers", "2", "--model-dim", "16", "--runs", "2")
    assert body["benchmark"] == "after_commit"
    assert body["sub_models"] == 4
    for figure, found in body["ratio"].items():
        for side in ("between", "under"):
            check_timing(body[side][figure], runs=2)
        assert found > 0


def test_what_a_start_takes_and_what_that_comes_to() -> None:
    body = run("start.py", "--layers", "2", "--model-dim", "16")
    assert body["benchmark"] == "start"
    assert body["host_bytes"] == 16 * body["parameters"]
    assert all(rate > 0 for rate in body["per_core_second"].values())
    foreseen = body["foreseen"]
    for end in (0, 1):
        seconds = sum(each[end] for each in foreseen["seconds"].values())
        assert foreseen["total_s"][end] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("program", "argument", "value"),
    [
        ("optimizer.py", "--runs", "0"),
        ("swap.py", "--json", "/no/such/folder/x.json"),
        ("devices.py", "--inter", "3"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    program: str, argument: str, value: str
) -> None:
    done = started(program, argument, value)
    assert done.returncode == 2
    assert value in done.stderr
    assert "Traceback" not in done.stderr


def test_the_cost_of_a_crowd() -> None:
    body = run("scale.py", "--peers", "4", "5", "--rounds", "1", says="early")
    assert [row["peers"] for row in body["results"]] == [4, 5]
    for row in body["results"]:
        assert 0 < row["trigger_s"] <= row["latest_trigger_s"] <= row["round_s"]
        assert row["early"] == 0
        assert row["dht_kb_per_peer_s"] > 0


def test_a_swarm_of_one_beside_plain_pytorch() -> None:
    body = run("swarm_of_one.py", "--rounds", "3", "--turns", "1")
    assert (body["benchmark"], body["rounds"]) == ("swarm-of-one", 3)
    ours, theirs = body["median_ms"].values()
    assert body["ratio"] == pytest.approx(ours / theirs)


def test_every_amount_of_memory_is_foretold_and_measured(tmp_path: Path) -> None:
    body = run(
        "plan_accuracy.py", "--models", "tiny", "--runs", "2", "--micro-batches", "2",
        env=torch_alone(tmp_path),
    )  # fmt: skip
    assert (body["benchmark"], body["device"], body["threads"]) == ("plan_accuracy", "cpu", 1)
    rows = body["rows"]
    assert [row["memory"] for row in rows] == ["swapped", "partly", "resident"]
    for row in rows:
        quotient = median(row["foretold_s"]) / median(row["measured_s"])
        assert row["ratio"] == pytest.approx(quotient)
        assert 0 < row["computing_foretold"] <= 1
        assert 0 < row["computing"] <= 1
    assert len(rows[2]["resident"]) == rows[2]["sub_models"]
    assert len(rows[0]["resident"]) < rows[0]["sub_models"]
    assert rows[0]["device_bytes"] < rows[2]["device_bytes"]
    assert body["ratio_by_model"] == {"tiny": median(row["ratio"] for row in rows)}


def test_a_peers_devices_beside_pytorchs_own_ways() -> None:
    body = run(
        "devices.py", "--devices", "2", "--passes", "2", "--steps", "1", "--blocks", "2",
        "--width", "64", "--block-ms", "1", "--sides", "Atom", "FSDP2", "interleaved 1F1B",
        says="device MB",
    )  # fmt: skip
    ours = body["rows"][0]
    for row in body["rows"]:
        assert row["loss"] == pytest.approx(ours["loss"], rel=1e-5), row["side"]
        assert row["micro-batches/s"] > 0
        assert row["device MB"] > 0
    assert ours["same bits"]
    assert ours["beside foretold"] > 0
