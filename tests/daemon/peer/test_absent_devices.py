"""A device that is not there is said before the text is read and the model is traced."""

from pathlib import Path

import pytest
import torch

from atom.base.errors import DeviceError
from atom.daemon.peer.setup import run_start
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import TINY_RUN


def test_an_absent_device_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run, box, state = (tmp_path / name for name in ("run.toml", "box.toml", "state"))
    run.write_text(TINY_RUN)
    box.write_text('[device]\nuse = ["cuda:0", "cuda:1"]\n[network]\nlisten = "127.0.0.1:0"\n')
    with pytest.raises(DeviceError, match="no usable CUDA GPU") as refused:
        run_start(run, Silence(), box, state)
    assert '[device] use = "cpu"' in refused.value.hint
    made = {path.name for path in state.iterdir()}
    assert not made & {"tokens", "manifest.bin", "program"}
