"""What most of several donors say, without waiting for those that say nothing."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from atom.base.errors import PeerRefused

Answer = bytes | PeerRefused | OSError
_LOOK_S = 0.05


def agree(
    asked: Sequence[str],
    ask: Callable[[str, threading.Event], bytes],
    stop: threading.Event,
) -> dict[str, Answer]:
    """The answers by donor, as soon as more than half of those asked say the same, or all have
    said something. `ask` runs in a thread of its own and ends soon after its event is set; what it
    raises but for PeerRefused and OSError ends the asking, and is raised here.
    """
    answers: dict[str, Answer] = {}
    faults: list[Exception] = []
    changed, enough = threading.Condition(), threading.Event()

    def question(donor: str) -> None:
        try:
            answer: Answer = ask(donor, enough)
        except (PeerRefused, OSError) as error:
            answer = error
        except Exception as fault:  # noqa: BLE001 - raised where somebody waits for the answers
            faults.append(fault)
            return
        with changed:
            if not enough.is_set():
                answers[donor] = answer
            changed.notify_all()

    threads = [threading.Thread(target=question, args=(donor,), name="atom-ask") for donor in asked]
    for thread in threads:
        thread.start()
    with changed:
        while not (stop.is_set() or faults or _settled(answers, len(asked))):
            changed.wait(_LOOK_S)
        enough.set()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return answers


def _settled(answers: dict[str, Answer], asked: int) -> bool:
    said = Counter(answer for answer in answers.values() if isinstance(answer, bytes))
    most = max(said.values(), default=0)
    return len(answers) == asked or 2 * most > asked
