"""`atom plan` as people and programs read it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import ControlError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from atom.cli.train import plan
from atom.config.load import normalised_run_text
from atom.config.peer_file import PeerFile
from atom.daemon.model.pinning import pin_for_plan
from atom.daemon.state_directory import StateDirectory
from atom.plan import planning
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import encode_manifest
from atom.training.run_optimizer import load_run
from tests.swarm.swarm_samples import a_manifest

PEERS = Path(__file__).parents[3] / "peers"
DEMO = str(PEERS / "demo.toml")
ASSUME = ["--assume", "rtx3060-12g"]


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["plan", DEMO, *ASSUME, *arguments]) == ExitCode.OK
    return capsys.readouterr().out.splitlines()


def with_memory(folder: Path, size: str) -> tuple[str, str]:
    """Return options for a peer file with this much device memory."""
    (folder / "box.toml").write_text(f'[device]\nmemory = "{size}"\n')
    return "--peer", str(folder / "box.toml")


def test_the_text_names_what_counts_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    request = plan.PlanRequest(PEERS / "demo.toml", assume=ASSUME[1], peers=3)
    made = plan.plan_run(request, lambda _: None)
    monkeypatch.setattr(plan, "plan_run", lambda request, note: made)
    for columns in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = lines_of(capsys)
        assert max(map(len, lines)) <= columns
        assert not any("\x1b" in line or line != line.rstrip() for line in lines)
    assert "verdict" in lines[2], "first of all"
    for words in ("834,304 parameters", "GeForce RTX 3060", "3 peers", "codec = "):
        assert words in "\n".join(lines), words


def test_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads("\n".join(lines_of(capsys, "--json", "--peer", str(PEERS / "cpu.toml"))))
    assert set(told) == {
        "run", "model", "precision", "parameters", "fits", "host", "disk", "device",
        "work", "round", "recommendation", "plan",
    }  # fmt: skip
    assert told["host"]["total_bytes"] == sum(told["host"]["arenas"].values())
    assert told["device"]["budget_bytes"] == 2 * 2**30
    assert told["work"]["network_bytes_per_s"] == 2.5e6
    assert told["round"]["run_s"] == pytest.approx(100 * told["round"]["round_s"])
    times = told["round"]["swarm_tokens_per_s"] / told["round"]["alone_tokens_per_s"]
    assert told["round"]["run_alone_s"] == pytest.approx(times * told["round"]["run_s"])


def test_json_tells_what_each_of_two_devices_brings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "step_elements_per_s", lambda *given: 1e9)
    (tmp_path / "box.toml").write_text('[device]\nuse = ["cuda:0", "cuda:1"]\n')
    box = "--peer", str(tmp_path / "box.toml")
    device = json.loads("\n".join(lines_of(capsys, "--json", *box)))["device"]
    assert device["count"] == 2
    assert list(device["micro_batches_per_s"]) == ["1", "2"], "sizes of groups"
    one, two = device["alone_tokens_per_s"]
    assert 0 < one < two


def test_of_a_model_that_does_not_fit_what_would_do_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["plan", DEMO, *ASSUME, *with_memory(tmp_path, "1 MB")]) == ExitCode.DEVICE
    error = " ".join(capsys.readouterr().err.split())
    enough = re.search(r"and ([\d.]+ \w+) \(\d+ bytes\) would do", error)
    assert enough is not None
    lines_of(capsys, *with_memory(tmp_path, enough[1]))
    arguments = ["plan", DEMO, *ASSUME, *with_memory(tmp_path, "16 GiB")]
    assert main(arguments) == ExitCode.DEVICE
    assert "has 12.9 GB" in capsys.readouterr().err


def test_a_swarm_that_is_slower_than_one_box_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    verdict = lines_of(capsys, "--network", "1 kbit/s")[3]
    assert ", less than the " in verdict
    assert " of this machine alone" in verdict
    assert ", less than " not in lines_of(capsys, "--network", "100 Gbit/s")[3]


def test_a_precision_that_a_card_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(PEERS / "gpt3-small.toml"), "--assume", "gtx1080ti-11g"]
    assert main(arguments) == ExitCode.DEVICE
    seen = capsys.readouterr()
    assert (seen.out, seen.err.count("error:"), seen.err.count("hint:")) == ("", 1, 1)
    assert "choose one of float16, float32" in seen.err


def test_a_box_with_too_little_memory_or_disk_sees_the_plan_and_gets_an_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = tmp_path / "small.toml"
    peer.write_text('[host]\nmemory = "10 MB"\n')
    assert main(["plan", DEMO, *ASSUME, "--peer", str(peer), "--json"]) == ExitCode.DEVICE
    seen = capsys.readouterr()
    assert not json.loads(seen.out)["fits"]
    assert "of host memory; there are 10.0 MB" in seen.err
    assert "[host] memory" in seen.err
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    assert main(["plan", DEMO, *ASSUME]) == ExitCode.STORAGE
    seen = capsys.readouterr()
    assert "short by" in seen.out
    assert "of disk; there are 1.0 kB" in seen.err


@pytest.mark.parametrize(
    ("answer", "manifest", "found"),
    [
        ({"pass_sequences_per_s": 12.5, "devices": {"cpu": None}}, True, 1),
        ({"pass_sequences_per_s": None, "devices": {"cpu": None}}, True, 0),
        ({"state": "starting"}, True, 0),
        (ControlError("accepts no commands now"), True, 0),
        ({"pass_sequences_per_s": 12.5, "devices": {"cpu": None}}, False, 0),
        (None, True, 0),
    ],
    ids=["trains", "no pass yet", "starts", "silent", "damaged manifest", "not running"],
)
def test_only_daemons_that_train_have_live_passes(
    answer: Any, manifest: bool, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = StateDirectory(tmp_path / "atom" / "words")
    folder.lock()
    owner = Identity.load_or_create(folder.identity)
    run, _ = pin_for_plan(load_run(Path(DEMO)), PEERS, PeerFile())
    of_run = a_manifest(owner, run=run.run.name, run_file=normalised_run_text(run))
    folder.manifest.write_bytes(encode_manifest(of_run, owner) if manifest else b"damaged")

    def ask(state: Path, command: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(plan, "ask_daemon", ask)
    if answer is None:
        folder.unlock()
    passes = plan.live_passes()
    folder.unlock()
    assert len(passes) == found
    for each in passes:
        assert each == (12.5, (run.model, run.batch.micro_batch_sequences, ("cpu",)))
