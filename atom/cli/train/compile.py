"""`atom compile`: the generated sub-models, the plan and its schedule, as files to look at."""

import json
from contextlib import suppress
from pathlib import Path

from atom.base.disk_words import why_not_written
from atom.base.errors import StorageError
from atom.cli.shell.signals import raise_on_signals
from atom.cli.shell.terminal import stdout_console
from atom.cli.train.plan import make_plan, plan_json
from atom.cli.train.schedule_chart import schedule_svg
from atom.daemon.fitting.box_plan import Plan
from atom.daemon.fitting.planning import PlanRequest
from atom.plan.gantt import bars

_FILES = ("submodels.py", "plan.json", "schedule.svg")


def compile_run(request: PlanRequest, folder: Path) -> None:
    """Writes `submodels.py`, `plan.json` and `schedule.svg`, all or none of them.

    Raises: ConfigError, ModelError, DeviceError; StorageError.
    """
    _refuse_what_is_no_folder(folder)
    _refuse_folders_in_place(folder)
    plan = make_plan(request)
    contents = (
        plan.program.source.encode(),
        (json.dumps(plan_json(plan), indent=1) + "\n").encode(),
        schedule_svg(bars(plan.choice.timeline), _title(plan)),
    )
    files = dict(zip(_FILES, contents, strict=True))
    raise_on_signals()
    _write(folder, files)
    console = stdout_console()
    for name in files:
        console.print(str(folder / name), highlight=False, soft_wrap=True)


def _refuse_what_is_no_folder(folder: Path) -> None:
    """Before a minute is spent. Raises: StorageError."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise StorageError(f"{there} is a file, not a folder", "choose another with --out DIR")


def _refuse_folders_in_place(folder: Path) -> None:
    """A file is not put in a folder's place. Raises: StorageError."""
    for name in _FILES:
        if (folder / name).is_dir():
            raise StorageError(f"{folder / name} is a folder", "choose another with --out DIR")


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """All aside, then all in place. Raises: StorageError, with what was there as it was."""
    fresh = [each for each in (folder, *folder.parents) if not each.exists()]
    partial = {folder / f".{name}.partial": folder / name for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for aside, content in zip(partial, files.values(), strict=True):
            aside.write_bytes(content)
        for aside, path in partial.items():
            aside.replace(path)
    except BaseException as problem:  # also when interrupted: nothing of ours stays
        for aside in partial:
            with suppress(OSError):
                aside.unlink()
        for made in fresh:
            with suppress(OSError):
                made.rmdir()
        if not isinstance(problem, OSError):
            raise
        raise StorageError(
            f"cannot write into {folder}: {why_not_written(problem)}",
            "choose another with --out DIR",
        ) from problem


def _title(plan: Plan) -> str:
    count, timeline = plan.choice.micro_batches, plan.choice.timeline
    return (
        f"{plan.run}: a pass of {count} micro-batch{'' if count == 1 else 'es'} through "
        f"{len(plan.choice.pieces)} sub-models on {plan.device.title}, {timeline.seconds:.3g} s, "
        f"the device computes {timeline.computing:.0%} of the time"
    )
