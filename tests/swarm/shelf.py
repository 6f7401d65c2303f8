"""A store of what a test puts on it."""

from atom.swarm.state.blobs import BlobStore, Content


class Shelf(BlobStore):
    def __init__(self, contents: dict[str, Content] | None = None) -> None:
        self.contents = contents or {}
        super().__init__(lambda name: self.contents.get(name))
