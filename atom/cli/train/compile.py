"""`atom compile`: the generated sub-models and the plan, as files to look at."""

import json
from functools import partial
from pathlib import Path

from atom.base.errors import StorageError
from atom.cli.shell.output_file import write_whole
from atom.cli.shell.terminal import stdout_console
from atom.cli.train.plan import make_plan, plan_json
from atom.daemon.fitting.planning import PlanRequest

_ELSEWHERE = "choose another with --out DIR"


def compile_run(request: PlanRequest, folder: Path) -> None:
    """Writes `submodels.py` and `plan.json`. Raises: ConfigError, ModelError, DeviceError;
    StorageError."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():  # said before a minute is spent
        raise StorageError(f"{there} is a file, not a folder", _ELSEWHERE)
    source, document = folder / "submodels.py", folder / "plan.json"
    for file in (source, document):
        if file.is_dir():
            raise StorageError(f"{file} is a folder", _ELSEWHERE)
    plan = make_plan(request)
    files = {
        source: plan.program.source,
        document: json.dumps(plan_json(plan), indent=1) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StorageError(f"cannot make {folder}: {problem.strerror}", _ELSEWHERE) from problem
    for file, text in files.items():
        write_whole(file, partial(_write, text))
        stdout_console().print(str(file), highlight=False, soft_wrap=True)


def _write(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")
