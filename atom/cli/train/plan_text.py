"""A plan as text for a terminal: memory and speed. Pure."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atom.base.units import format_bytes, format_seconds
from atom.plan.planning import Plan
from atom.plan.prediction import RoundPrediction

_WAITS = {
    "link": "weights",
    "gradients": "copies of gradients",
    "values": "values between sub-models",
    "end": "the last gradients",
}


def plan_text(plan: Plan) -> RenderableType:
    """Return the page of a plan, with the number of sub-models; `--json` lists them."""
    return Group(
        _headline(plan),
        *_section("verdict", _verdict(plan)),
        *_section("requirements", _fit(plan)),
        *_section(_pass_title(plan), _pass(plan)),
        *_section(_round_title(plan), _round(plan)),
    )


def _headline(plan: Plan) -> Text:
    tokens = plan.work.sequence_tokens
    each = f"x {tokens:,} tokens" if tokens > 1 else "samples"
    return Text.assemble(
        (plan.run.run.name, "name"),
        f"   {plan.model}, {plan.parameters:,} parameters in {plan.run.model.precision}, "
        f"micro-batches of {plan.work.micro_batch_sequences} {each}",
    )


def _section(title: str, content: RenderableType) -> Iterable[RenderableType]:
    return Text(), Text(title, "bold"), Padding(content, (0, 0, 0, 2), expand=False)


def _grid(right: Sequence[int] = (1,), columns: int = 3) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    for column in range(columns):
        table.add_column(justify="right" if column in right else "left")
    return table


def _verdict(plan: Plan) -> RenderableType:
    """Return the main figures: speed, traffic, duration of the run, and the recommended mode."""
    round_, gain = plan.prediction, plan.gain
    unit = "tokens" if plan.work.sequence_tokens > 1 else "samples"
    times = ("fewer than", "bad") if gain.times_alone < 1 else f"{gain.times_alone:.2g} times"
    others = f"; without this machine {gain.without:,.0f}" if gain.without else ""
    doubt = " (doubtful)" * plan.profile.doubtful
    alone = f" the {gain.alone:,.0f} of this machine alone{doubt}{others}"
    swarm = Text.assemble(f"{gain.swarm:,.0f} {unit}/s for {_peers(plan)}, ", times, alone)
    table = _grid(right=())
    table.add_row("speed", swarm)
    if plan.work.dialable is not None:
        table.add_row("reach", f"{plan.work.dialable:,} of these peers can be dialled")
    elif plan.work.peers > 2:
        fewer = plan.with_one_dialable
        speed = f"{fewer.swarm:,.0f} {unit}/s, {fewer.times_alone:.2g} times this machine alone"
        table.add_row("reach", f"if only one of the peers can be dialled: {speed}")
    if len(plan.alone) > 1:
        each = ", ".join(f"{rate:,.0f} with {n}" for n, rate in enumerate(plan.alone, start=1))
        table.add_row("devices", f"{each}: {unit}/s of this machine alone")
    if plan.choice.group_devices > 1:
        table.add_row("groups", f"{plan.choice.groups} of {plan.choice.group_devices} devices")
    table.add_row("passes", _share_of(round_))
    an_hour = format_bytes(round_.line_bytes_per_day / 24)
    table.add_row("line", f"{an_hour} per hour up, and the same down")
    if plan.run_s is not None and plan.run_alone_s is not None:
        ends = f"{plan.run.run.rounds:,} rounds take {format_seconds(plan.run_s)}"
        table.add_row("end", f"{ends}; alone {format_seconds(plan.run_alone_s)}")
    found = plan.recommendation
    keys = ", ".join(f"{key} = {json.dumps(value)}" for key, value in found.keys.items())
    assumed = " (with one dialable peer)" if plan.work.dialable is None else ""
    table.add_row("best mode", f"{keys}: {found.reason}{assumed}")
    return table


def _peers(plan: Plan) -> str:
    peers = plan.work.peers
    return f"{peers:,} peers like this one" if peers > 1 else "this machine alone"


def _fit(plan: Plan) -> RenderableType:
    memory, host, disk = plan.footprint.device, plan.footprint.host, plan.footprint.disk
    limits = plan.choice.cut.limits
    of_each = f"on each of {limits.devices}" if limits.devices > 1 else ""
    table = _grid(right=(1, 2), columns=4)
    per_parameter = f"{host.total_bytes / plan.parameters:.0f} bytes per parameter"
    table.add_row("", Text("needs", "quiet"), Text("has", "quiet"), "")
    rows = [
        (f"device ({plan.device})", memory.total_bytes, limits.device_bytes, of_each),
        ("host memory", host.total_bytes, host.have_bytes, per_parameter),
        ("disk", disk.total_bytes, disk.have_bytes, ""),
    ]
    for name, need, have, remark in rows:
        table.add_row(name, format_bytes(need), format_bytes(have), _fits(need, have, remark))
    return table


def _fits(need_bytes: int, have_bytes: int, remark: str) -> Text:
    if need_bytes <= have_bytes:
        verdict = (f"fits, {format_bytes(have_bytes - need_bytes)} to spare", "good")
    else:
        verdict = (f"short by {format_bytes(need_bytes - have_bytes)}", "bad")
    return Text.assemble(verdict, (f"  {remark}" if remark else "", "quiet"))


def _cut(plan: Plan) -> str:
    """Say in how many sub-models the model is cut, and which of them stay on the device."""
    arrangement, count = plan.choice.arrangement, len(plan.choice.cut.pieces)
    title = f"{count} sub-model{'' if count == 1 else 's'}"
    if len(arrangement.resident) == count:
        return f"{title}: all weights stay on the device"
    if stay := len(arrangement.resident):
        return f"{title}, {stay} of them stay{'s' if stay == 1 else ''} on the device"
    return f"{title}, swapped through {arrangement.slots} slots"


def _pass_title(plan: Plan) -> str:
    count = plan.choice.micro_batches
    return f"a pass of {count} micro-batch{'' if count == 1 else 'es'}"


def _pass(plan: Plan) -> RenderableType:
    timeline = plan.choice.timeline
    table = _grid()
    table.add_row("model", "", _cut(plan))
    table.add_row("takes", format_seconds(timeline.seconds), Text("times are ") + _source(plan))
    busy = f"the device computes {timeline.computing:.0%} of the pass"
    table.add_row("computes", format_seconds(timeline.busy_s("compute")), busy)
    waits_s = plan.choice.waits_s
    longest = sorted(waits_s, key=lambda reason: -waits_s[reason])
    words = (f"{format_seconds(waits_s[r])} for {_WAITS[r]}" for r in longest if waits_s[r] > 0)
    table.add_row("waits", format_seconds(sum(waits_s.values())), ", ".join(words))
    return table


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
        return Text.assemble((f"{others}measured again when they rest; ", "bad"), text)
    return Text(text)


def _round_title(plan: Plan) -> str:
    return f"a round of {plan.work.round_sequences:,} sequences with {_peers(plan)}"


def _round(plan: Plan) -> RenderableType:
    round_ = plan.prediction
    network = f"{plan.work.network_bytes_per_s * 8 / 1e6:,.0f} Mbit/s each way"
    table = _grid()
    passes = f"{round_.passes} pass{'' if round_.passes == 1 else 'es'}"
    table.add_row("accumulates", format_seconds(round_.passes_s), passes)
    waits = f"each delays a pass by {format_seconds(round_.optimizer_wait_s)}"
    steps = f"measured on this machine; {round_.steps} per round, {waits}"
    table.add_row("a step", format_seconds(round_.optimizer_s), steps)
    travels = f"{format_bytes(plan.footprint.wire_bytes)} up and as much down, at {network}"
    table.add_row("exchange", format_seconds(round_.all_reduce_s), travels)
    goes_on = "continue during" if round_.overlapped else "wait for"
    table.add_row("round", format_seconds(round_.round_s), f"passes {goes_on} the exchange")
    return table


def _share_of(round_: RoundPrediction) -> str:
    share = f"{round_.utilisation:.0%} of the time"
    if not round_.overlapped:
        return share
    waiting = round_.passes_s / (round_.passes_s + round_.all_reduce_s)
    return f"{share}, during the exchange too; {waiting:.0%} if passes waited for it"
