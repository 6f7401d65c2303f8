"""Consoles that print nothing."""


class Silence:
    """Console that ignores everything."""

    def join_address(self, address: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def ask(self, question: str, default: bool) -> bool | None:
        return None


class Notes(Silence):
    """Console that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
