"""What stands for a parallel strategy where processes train nothing."""

import time
from pathlib import Path


class SharedFile:
    """Passes the text of process 0 through a file."""

    host = "127.0.0.1"

    def __init__(self, index: int, count: int, place: Path) -> None:
        self.index, self.count, self.place = index, count, place

    def broadcast(self, text: str) -> str:
        if self.index == 0:
            self.place.with_suffix(".part").write_text(text)
            self.place.with_suffix(".part").rename(self.place)
        while not self.place.exists():
            time.sleep(0.002)
        return self.place.read_text()

    def peer_lost(self) -> None:
        """There is no library to tell."""
