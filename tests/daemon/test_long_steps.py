"""What a founder is told of while its run is made."""

from pathlib import Path

import pytest

from atom.daemon.console import BYTES, Silence
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3


class Steps(Silence):
    """(done, total, unit) of every long step, by what it is."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[int, int, str]]] = {}

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        self.told.setdefault(what, []).append((done, total, unit))


def test_checking_measuring_and_making_weights_tell_how_far_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with folder_in(tmp_path) as folder:
        folder.console = steps = Steps()
        member = folder.found(GPT3)
        parameters = sum(value.numel() for value in member.replica.export_parameters().values())
    checking = steps.told["checking the sub-models"]
    assert checking == [(done, 3, "runs") for done in range(4)]
    measuring = steps.told["layers measured"]
    layers = len(measuring) - 1
    assert measuring == [(done, layers, "layers") for done in range(layers + 1)]
    weights = steps.told["making the first weights"]
    assert weights[-1] == (parameters, parameters, "parameters")
    assert [done for done, _, _ in weights] == sorted({done for done, _, _ in weights})
    assert len(weights) == 1 + len(member.replica.export_parameters()), "one by one"
