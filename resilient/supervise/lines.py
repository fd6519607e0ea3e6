r"""Bytes of a process's output, cut into lines as a terminal would show them.

Progress bars go back to the line's start (``\r``) or over their last characters
(``\b``) and write again: of a finished line only what is left to be seen is kept.
"""

_LONGEST = 64 * 1024  # whoever prints no line end must not fill our memory


def visible(line: bytes) -> bytes:
    """What is left of a line after all its returns and backspaces."""
    line = line.rstrip(b"\r")
    line = line[line.rfind(b"\r") + 1 :]
    if b"\b" not in line:
        return line
    left = bytearray()
    for byte in line:
        if byte == 8:  # backspace
            del left[-1:]
        else:
            left.append(byte)
    return bytes(left)


class Lines:
    """Collects bytes and gives out finished lines.

    Attributes:
        rest: What came since the last line end.
    """

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Lines that these bytes finish, without their ends."""
        *lines, rest = (self.rest + data).split(b"\n")
        if len(rest) > _LONGEST:
            rest = visible(rest)
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        self.rest = rest
        return lines

    def end(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest, self.rest = self.rest, b""
        return [rest] if rest else []
