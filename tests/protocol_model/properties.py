"""Forbidden states, checked after every move.

A property that only one kind of move can break is looked at after moves of that kind.
"""

from .ledger import Ledger
from .moves import Move
from .rules import Rules
from .state import ALIVE, State


def problem(rules: Rules, before: State, move: Move, after: State) -> str | None:
    """Return the property that this move broke; None if all is well. `rules`: rules by which
    replicas take commits."""
    kind, ledger = move[0], rules.ledger
    if kind == "ring":
        return _unequal_heads_averaged(ledger, before, move)
    if kind in ("accept", "finish"):
        return _two_values_chosen(ledger, after)
    if kind == "commit":
        return _two_commits(after) or _counted_twice(ledger, move) or _refused(rules, move)
    if kind in ("step", "fetch"):
        lost = _commit_lost(rules, before, move) if kind == "fetch" else None
        return lost or _unequal_bytes(ledger, after)
    return None


def _two_commits(state: State) -> str | None:
    committed = {(a.head, a.value) for a in state.attempts if a.committed and not a.survivors}
    return "two commits by an ordinary quorum on one head" if _twice(committed) else None


def _two_values_chosen(ledger: Ledger, state: State) -> str | None:
    """A value that a quorum accepted may be committed by now; nothing else ever may."""
    ordinary = [a for a in state.attempts if not a.survivors]
    chosen = {
        (a.head, a.value) for a in ordinary if a.committed or ledger.is_quorum(a.head, a.votes)
    }
    return "a quorum accepted one value, then another" if _twice(chosen) else None


def _twice(values_on_heads: set[tuple[int, int]]) -> bool:
    return len({head for head, _ in values_on_heads}) < len(values_on_heads)


def _counted_twice(ledger: Ledger, move: Move) -> str | None:
    attempt = move[2]
    units = ledger.values[attempt.value].units
    if len(set(units)) < len(units) or ledger.heads[attempt.head].units & set(units):
        return "gradients counted twice"
    return None


def _refused(rules: Rules, move: Move) -> str | None:
    return None if rules.certified(move[2]) else "a commit that no peer takes"


def _unequal_heads_averaged(ledger: Ledger, before: State, move: Move) -> str | None:
    attempt, members = move[2], move[3]
    right = ledger.heads[attempt.head].content
    for p, _ in members:
        peer = before.peers[p]
        if peer.head != attempt.head or peer.content != right:
            return "peers with different heads averaged"
    return None


def _unequal_bytes(ledger: Ledger, state: State) -> str | None:
    for peer in state.peers:
        if peer.status == ALIVE and peer.content != ledger.heads[peer.head].content:
            return "equal heads, different bytes"
    return None


def _commit_lost(rules: Rules, before: State, move: Move) -> str | None:
    """A peer may leave its chain only for a preferred one, and only if a branch is on record: its
    own, where the other's round is a quorum's."""
    (_, p, _, new), ledger = move, rules.ledger
    old = before.peers[p].head
    if old in ledger.heads[new].path:
        return None
    if not rules.prefers(new, old):
        return "a commit was given up for a chain that is not preferred"
    paths = ledger.heads[old].path, ledger.heads[new].path
    fork = max(set(paths[0]) & set(paths[1]))
    ours, theirs = sides = [path[path.index(fork) + 1] for path in paths]
    if ledger.is_branch(theirs) and not ledger.is_branch(ours):
        return "a quorum's round was given up for a branch"
    recorded = any(
        a.committed and a.survivors and ledger.head_after(fork, a.value) in sides
        for a in before.attempts
        if a.head == fork
    )
    return None if recorded else "a commit was given up and no branch is on record"
