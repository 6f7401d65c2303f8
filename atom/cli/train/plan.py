"""`atom plan`: memory and speed of a run on this machine. Needs no weights, text or swarm."""

import dataclasses
import json
from contextlib import suppress
from typing import Any

import typer

from atom.base.errors import PeerRefused, UserError
from atom.cli.box.control import ask_daemon, state_directories
from atom.cli.shell.terminal import print_plainly, stderr_console
from atom.cli.train.plan_text import plan_text
from atom.config.places import base_folder
from atom.daemon.model.pinning import agreed_run, plan_run
from atom.plan.planning import LivePasses, Plan, PlanRequest, require_room
from atom.swarm.records.manifest import decode_manifest


def show_plan(request: PlanRequest, as_json: bool) -> None:
    """Print the plan of a run.

    Args:
        request: Arguments of the plan.
        as_json: If True, print JSON instead of a page.

    Raises:
        ConfigError, ModelError, TrustError: Raised by `plan_run`.
        DeviceError: Raised by `plan_run`, or, after printing, if host memory is too small.
        StorageError: After printing, if the disk is too small.
    """
    console = stderr_console()
    with console.status("reading the model") as status:

        def note(text: str) -> None:
            console.print(text, style="quiet")
            status.update(text)

        plan = plan_run(request, note)
    if as_json:
        typer.echo(json.dumps(plan_json(plan), indent=2))
    else:
        print_plainly(plan_text(plan))
    require_room(plan)


def live_passes() -> list[LivePasses]:
    """Return the passes of this user's peers on this machine, as their daemons report them."""
    found = []
    for folder in state_directories(base_folder("data")):
        with suppress(UserError, PeerRefused, OSError):
            info = ask_daemon(folder.root, "info") if folder.in_use else {}
            if speed := info.get("pass_sequences_per_s"):
                run = agreed_run(decode_manifest(folder.manifest.read_bytes(), None))
                kind = run.model, run.batch.micro_batch_sequences, tuple(info["devices"])
                found.append(LivePasses(speed, kind))
    return found


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the object that `atom plan --json` prints."""
    host, disk = plan.footprint.host, plan.footprint.disk
    return {
        "run": plan.run.run.name,
        "model": plan.model,
        "precision": plan.run.model.precision,
        "parameters": plan.parameters,
        "fits": plan.footprint.fits,
        "host": dataclasses.asdict(host)
        | {"arenas": dict(host.arenas), "total_bytes": host.total_bytes},
        "disk": dataclasses.asdict(disk) | {"total_bytes": disk.total_bytes},
        "device": {
            "title": plan.device,
            "count": plan.choice.devices,
            "micro_batches_per_s": dict(plan.shapes),
            "alone_tokens_per_s": plan.alone,
            "budget_bytes": plan.choice.cut.limits.device_bytes,
            "seconds_from": plan.profile.source,
            "doubtful": plan.profile.doubtful,
            "link_bytes_per_s": plan.profile.link.load_bytes_per_s,
        },
        "work": dataclasses.asdict(plan.work),
        "round": _round_json(plan),
        "recommendation": {
            "keys": plan.recommendation.keys,
            "utilisation": plan.recommendation.utilisation,
            "reason": plan.recommendation.reason,
        },
        "plan": plan.choice.to_json(plan.program),
    }


def _round_json(plan: Plan) -> dict[str, Any]:
    """Return the predicted round, with the figures that follow from it."""
    round_, gain = plan.prediction, plan.gain
    return dataclasses.asdict(round_) | {
        "round_s": round_.round_s,
        "utilisation": round_.utilisation,
        "line_bytes_per_day": round_.line_bytes_per_day,
        "swarm_tokens_per_s": gain.swarm,
        "without_this_peer_tokens_per_s": gain.without,
        "alone_tokens_per_s": gain.alone,
        "one_dialable_tokens_per_s": plan.with_one_dialable.swarm,
        "run_s": plan.run_s,
        "run_alone_s": plan.run_alone_s,
    }
