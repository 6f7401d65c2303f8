"""Real processes: an actor's daemon must never be left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from atom.cli.demo.actor import Actor, ActorFailed

PARENT = """
import asyncio, sys
from pathlib import Path
from atom.cli.demo.actor import Actor

async def main():
    actor = Actor("peer 1", Path(sys.argv[1]))
    await actor.start("bootstrap", "--listen", "127.0.0.1:0", "--state", sys.argv[2])
    address = await actor._stdout.readline()
    print(actor.process_id, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_daemon_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    async def play() -> None:
        actor = Actor("peer 1", tmp_path / "log")
        await actor.start("start", str(tmp_path / "none.toml"))
        try:
            await actor.join_address()
        finally:
            await actor.remove()

    with pytest.raises(ActorFailed, match="peer 1 ended with exit code 3") as failure:
        asyncio.run(play())
    assert "none.toml: no such file" in failure.value.hint
    assert str(tmp_path / "log") in failure.value.hint


def test_what_was_never_started_is_removed_easily(tmp_path: Path) -> None:
    asyncio.run(Actor("peer 1", tmp_path / "log").remove())


def test_remove_takes_a_stubborn_process(tmp_path: Path) -> None:
    async def play() -> int | None:
        actor = Actor("peer 1", tmp_path / "log")
        await actor.start("bootstrap", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "s"))
        await actor._stdout.readline()
        os.kill(actor.process_id, signal.SIGSTOP)
        await actor.remove()
        return actor.exit_code

    assert asyncio.run(play()) == -signal.SIGKILL


def test_a_killed_demo_leaves_no_daemon(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PARENT, str(tmp_path / "log"), str(tmp_path / "state")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        daemon = psutil.Process(int(parent.stdout.readline()))
        family = [daemon, *daemon.children(recursive=True)]
        assert len(family) > 1
        parent.kill()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
