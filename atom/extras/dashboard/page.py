"""HTML page of a swarm's state. Pure. Peers are strangers, so the templates escape every text.

The page works without its script, which only saves reloading. Everything that changes with time is
in elements with an id inside `<main>`; the script replaces them one by one.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined

from atom.extras.dashboard.chart import loss_chart
from atom.extras.dashboard.feed import Seen
from atom.swarm.chain.commit_chain import Round
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.view import (
    SwarmView,
    batch_text,
    dialable_text,
    loss_meaning,
    loss_unit,
    remaining,
    trained_on,
    void_text,
)

MAX_ROWS = 500
"""Most peers in a table: laying out thousands every second would keep the browser busy."""
MAX_ROUNDS = 12


def page(seen: Seen) -> str:
    """Return the whole document."""
    return _rendered("page.html", seen)


def content(seen: Seen) -> str:
    """Return the content of `<main>`."""
    return _rendered("content.html", seen)


def agreement(view: SwarmView) -> str:
    """Compare the digests that replicas at the swarm's round claim.

    Returns:
        "identical", "different", or "unknown" if no replica claims a digest.
    """
    at_round = [peer for peer in _living(view) if peer.round == view.round]
    digests = {peer.state_digest for peer in at_round} - {b""}
    if not digests:
        return "unknown"
    return "identical" if len(digests) == 1 else "different"


def what_happened(each: Round) -> str:
    """Describe how a round was decided, and how many voters were absent."""
    words = []
    if each.branch:
        words.append(f"branch of {each.branch} without a quorum")
    if each.absent:
        words.append(f"{each.absent} voter{'s' if each.absent > 1 else ''} absent")
    return ", ".join(words) or "a quorum decided"


def _living(view: SwarmView) -> list[Lease]:
    return [peer for peer in view.peers if peer.state != PeerState.LEFT]


TEMPLATES = Environment(
    loader=PackageLoader("atom.extras.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The files in templates/, with the functions that they may call."""
TEMPLATES.filters |= {"thousands": "{:,}".format, "loss": "{:.4f}".format}
TEMPLATES.globals |= {
    each.__name__: each
    for each in (
        agreement, batch_text, dialable_text, loss_meaning, loss_unit, remaining, trained_on,
        void_text, what_happened,
    )
}  # fmt: skip


def _rendered(template: str, seen: Seen) -> str:
    ledger = seen.ledger
    chart = loss_chart(ledger.rounds, seen.validations, seen.samples) if ledger.rounds[1:] else None
    return TEMPLATES.get_template(template).render(
        seen=seen,
        view=seen.view,
        living=_living(seen.view),
        chart=chart,
        ledger=ledger,
        newest=ledger.rounds[: -MAX_ROUNDS - 1 : -1],
        shares=ledger.by_share(),
        words=("peer", "state", "reach", "digest"),
        most_rows=MAX_ROWS,
    )
