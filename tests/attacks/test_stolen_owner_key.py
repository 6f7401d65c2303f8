"""Attack with a stolen owner's key: found another run, whose model is the thief's code."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.base.errors import TrustError
from atom.cli.shell.options import parse_trust
from atom.daemon.peer.heartbeat import DirectoryThread
from atom.daemon.peer.own_code import check_trust, obtain_code
from tests.daemon.model.kept_runs import CODE, WORDS, Folder, folder_in

ADDRESS = "/ip4/203.0.113.7/tcp/31337/p2p/…"


class OutOfReach(DirectoryThread):
    """No directory: the file is in the state directory, as an earlier join left it."""

    def __init__(self) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as folder:
        yield folder


def test_code_of_a_stolen_key_is_not_run(folder: Folder) -> None:
    """Volunteers who trusted the owner's first code have not trusted the thief's."""
    honest = folder.found(WORDS, "owner")
    assert honest.code is not None
    thief = folder.root / "thief"
    thief.mkdir(mode=0o700)
    shutil.copy(folder.root / "owner" / "identity.key", thief)
    (folder.root / "own_models.py").write_text(CODE + "\nstolen = True\n")
    forged = folder.found(WORDS, "thief")
    assert forged.code is not None
    owner = forged.manifest.owner
    assert owner == honest.manifest.owner

    box = folder.box("volunteer")
    box.state.own_code.write_bytes(forged.code.content)

    def join(trust: str | None) -> object:
        assert trust is None or parse_trust(trust) == trust
        check_trust(owner, forged.run.model.module_sha256, trust)
        return obtain_code(forged.run, forged.manifest, ADDRESS, trust, box, OutOfReach())

    for key_alone in (None, owner):
        with pytest.raises(TrustError, match="it was not executed") as refused:
            join(key_alone)
        assert forged.code.sha256 in refused.value.message
        assert refused.value.hint.endswith(f"--trust {owner}:{forged.code.sha256}`")
    with pytest.raises(TrustError, match="you trust the code"):
        join(f"{owner}:{honest.code.sha256}")
    assert join(f"{owner}:{forged.code.sha256}"), "read, and trusted"
