"""`atom compile`: the generated sub-models, the plan and its schedule, as files to look at."""

import json
from pathlib import Path

from atom.base.errors import StorageError
from atom.cli.plan import make_plan, plan_json
from atom.cli.schedule_chart import schedule_svg
from atom.cli.terminal import stdout_console
from atom.daemon.planning import Plan, PlanRequest
from atom.daemon.state_directory import write_atomically
from atom.plan.gantt import bars


def compile_run(request: PlanRequest, folder: Path) -> None:
    """Writes `submodels.py`, `plan.json` and `schedule.svg`, all or none of them.

    Raises: ConfigError, ModelError, DeviceError; StorageError.
    """
    plan = make_plan(request)
    files = {
        "submodels.py": plan.program.source.encode(),
        "plan.json": (json.dumps(plan_json(plan), indent=1) + "\n").encode(),
        "schedule.svg": schedule_svg(bars(plan.choice.timeline), _title(plan)),
    }
    _write(folder, files)
    console = stdout_console()
    for name in files:
        console.print(str(folder / name), highlight=False, soft_wrap=True)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StorageError(
            f"cannot make the folder {folder}: {problem.strerror}", "choose another with --out DIR"
        ) from problem
    for name, content in files.items():
        write_atomically(folder / name, content)


def _title(plan: Plan) -> str:
    count, timeline = plan.choice.micro_batches, plan.choice.timeline
    return (
        f"{plan.run}: a pass of {count} micro-batch{'' if count == 1 else 'es'} through "
        f"{len(plan.choice.pieces)} sub-models on {plan.device.title}, {timeline.seconds:.3g} s, "
        f"the device computes {timeline.utilisation:.0%} of the time"
    )
