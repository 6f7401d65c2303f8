"""A console that says nothing."""

from atom.daemon.console import BYTES


class Silence:
    def join_address(self, address: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        pass
