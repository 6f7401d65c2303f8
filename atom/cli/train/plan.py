"""`atom plan`: memory and speed of a run on this machine. Needs no weights, text or swarm."""

import json
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from atom.base.errors import PeerRefused, UserError
from atom.base.units import format_bytes, format_seconds
from atom.cli.box.control import ask_daemon, state_directories
from atom.cli.shell.terminal import facts, print_plainly, stderr_console
from atom.config.places import base_folder
from atom.daemon.model.pinning import agreed_run, plan_run
from atom.plan.planning import LivePasses, Plan, PlanRequest, require_room
from atom.swarm.records.manifest import decode_manifest

_Rows = list[tuple[str | Text, ...]]


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
    host, disk, round_ = plan.footprint.host, plan.footprint.disk, plan.prediction
    found, profile = plan.recommendation, plan.profile
    return {
        "run": plan.run.run.name,
        "model": plan.model,
        "precision": plan.run.model.precision,
        "parameters": plan.parameters,
        "fits": plan.footprint.fits,
        "host": asdict(host) | {"arenas": dict(host.arenas), "total_bytes": host.total_bytes},
        "disk": asdict(disk) | {"total_bytes": disk.total_bytes},
        "device": {
            "title": plan.device,
            "count": plan.choice.devices,
            "micro_batches_per_s": dict(plan.shapes),
            "alone_tokens_per_s": plan.alone,
            "budget_bytes": plan.choice.cut.limits.device_bytes,
            "seconds_from": profile.source,
            "doubtful": profile.doubtful,
            "link_bytes_per_s": profile.link.load_bytes_per_s,
        },
        "work": asdict(plan.work),
        "round": asdict(round_)
        | {name: getattr(round_, name) for name in ("round_s", "utilisation", "line_bytes_per_day")}
        | {
            "swarm_tokens_per_s": plan.gain.swarm,
            "without_this_peer_tokens_per_s": plan.gain.without,
            "alone_tokens_per_s": plan.gain.alone,
            "one_dialable_tokens_per_s": plan.with_one_dialable.swarm,
            "run_s": plan.run_s,
            "run_alone_s": plan.run_alone_s,
        },
        "recommendation": {n: getattr(found, n) for n in ("keys", "utilisation", "reason")},
        "plan": plan.choice.to_json(plan.program),
    }


def plan_text(plan: Plan) -> RenderableType:
    """Return the page of a plan, with the number of sub-models; `--json` lists them."""
    work = plan.work
    each = f"x {work.sequence_tokens:,} tokens" if work.sequence_tokens > 1 else "samples"
    headline = Text.assemble(
        (plan.run.run.name, "name"),
        f"   {plan.model}, {plan.parameters:,} parameters in {plan.run.model.precision}, "
        f"micro-batches of {work.micro_batch_sequences} {each}",
    )
    sections = {
        "verdict": _verdict(plan),
        "requirements": _requirements(plan),
        f"a round of {work.round_sequences:,} sequences with {_peers(plan)}": _round(plan),
    }
    parts: list[RenderableType] = [headline]
    for title, rows in sections.items():
        parts += [Text(), Text(title, "bold"), facts(rows)]
    return Group(*parts)


def _verdict(plan: Plan) -> _Rows:
    """Return the main figures: speed, traffic, duration of the run, and the recommended mode."""
    round_, gain, found = plan.prediction, plan.gain, plan.recommendation
    unit = "tokens" if plan.work.sequence_tokens > 1 else "samples"
    times = ("less than", "bad") if gain.times_alone < 1 else f"{gain.times_alone:.2g} times"
    others = f"; without this machine {gain.without:,.0f}" if gain.without else ""
    doubt = " (doubtful)" * plan.profile.doubtful
    alone = f" the {gain.alone:,.0f} {unit}/s of this machine alone{doubt}{others}"
    swarm = Text.assemble(f"{gain.swarm:,.0f} {unit}/s for {_peers(plan)}, ", times, alone)
    rows: _Rows = [("speed", swarm)]
    if plan.work.dialable is not None:
        rows.append(
            ("reach", f"{plan.work.dialable:,} of these peers may own parts of an exchange")
        )
    elif plan.work.peers > 2:
        fewer = plan.with_one_dialable
        speed = f"{fewer.swarm:,.0f} {unit}/s, {fewer.times_alone:.2g} times this machine alone"
        rows.append(("reach", f"if others can dial only one of the peers: {speed}"))
    if len(plan.alone) > 1:
        each = ", ".join(f"{rate:,.0f} with {n}" for n, rate in enumerate(plan.alone, start=1))
        rows.append(("devices", f"{each}: {unit}/s of this machine alone"))
    rows.append(("passes", f"{round_.utilisation:.0%} of the time"))
    an_hour = format_bytes(round_.line_bytes_per_day / 24)
    rows.append(("line", f"{an_hour} per hour up, and the same down"))
    if plan.run_s is not None and plan.run_alone_s is not None:
        kind = "remaining rounds" if plan.rounds_done else "rounds"
        ends = f"{plan.rounds_left:,} {kind}: {format_seconds(plan.run_s)}"
        rows.append(("end", f"{ends}; alone {format_seconds(plan.run_alone_s)}"))
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in found.keys.items())
    assumed = " (with one dialable peer)" if plan.work.dialable is None else ""
    return [*rows, ("best mode", f"{keys}{assumed}: {found.reason}")]


def _peers(plan: Plan) -> str:
    peers = plan.work.peers
    return f"{peers:,} peers like this one" if peers > 1 else "this machine alone"


def _requirements(plan: Plan) -> _Rows:
    memory, host, disk = plan.footprint.device, plan.footprint.host, plan.footprint.disk
    needs = {
        f"device ({plan.device})": (memory.total_bytes, plan.choice.cut.limits.device_bytes),
        "host memory": (host.total_bytes, host.have_bytes),
        "disk": (disk.total_bytes, disk.have_bytes),
    }
    rows: _Rows = [("", Text("needs", "quiet"), Text("has", "quiet"), "")]
    for name, (need, have) in needs.items():
        rows.append((name, format_bytes(need), format_bytes(have), fit(need, have)))
    return rows


def fit(need: int, have: int) -> Text:
    """Return the text that says whether so many bytes fit, and how many are left or missing."""
    if need <= have:
        return Text(f"fits, {format_bytes(have - need)} to spare", "good")
    return Text(f"short by {format_bytes(need - have)}", "bad")


def _source(plan: Plan) -> Text:
    """Name the source of the seconds, and say whether they are doubtful."""
    profile = plan.profile
    if profile.source == "live":
        return Text("those of the peer that runs on this machine now")
    if profile.source == "assumed":
        return Text(f"estimated from the data sheet of {plan.device}")
    day = f"{datetime.fromtimestamp(profile.measured_at):%d %B %Y, %H:%M}"
    text = f"measured on this device, layer by layer, on {day}: --measure-again"
    if profile.doubtful:
        others = f"doubtful, other programs used {profile.others_share:.0%} of the device; "
        return Text.assemble((f"{others}measured again when it is idle; ", "bad"), text)
    return Text(text)


def _round(plan: Plan) -> _Rows:
    """Return how the model is cut, and the seconds of a pass, a step, the exchange and a round."""
    round_, timeline = plan.prediction, plan.choice.timeline
    computes = f"the device computes {timeline.computing:.0%} of it; its times are "
    waits = f"each delays a pass by {format_seconds(round_.optimizer_wait_s)}"
    network = f"{plan.work.network_bytes_per_s * 8 / 1e6:,.0f} Mbit/s each way"
    travels = f"{format_bytes(plan.footprint.wire_bytes)} up and as much down, at {network}"
    goes_on = "continue during" if round_.overlapped else "wait for"
    steps = f"measured on this machine; {round_.steps} per round, {waits}"
    if not round_.optimizer_s:
        steps = "on the device, during the passes"
    return [
        ("model", "", plan.choice.summary),
        ("a pass", format_seconds(timeline.seconds), Text(computes) + _source(plan)),
        ("a step", format_seconds(round_.optimizer_s), steps),
        ("passes", format_seconds(round_.passes_s), f"{round_.passes:,} per round"),
        ("exchange", format_seconds(round_.all_reduce_s), travels),
        ("round", format_seconds(round_.round_s), f"passes {goes_on} the exchange"),
    ]
