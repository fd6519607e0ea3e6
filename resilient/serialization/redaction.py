"""Removes anything that looks like a secret from records that others may read.

A secret is recognised by the name before it (``--api-key X``, ``PASSWORD=X``), by its
place in a URL, or by its own shape (``ghp_...``). It errs on the side of removing too
much, but a secret with none of these marks is not recognised.
"""

import re
from collections.abc import Iterator, Sequence

LEFT_OUT = "***"

# Anywhere in a name without its separators, or one of its words (not `max_tokens`).
_IN_NAMES = re.compile("passw|passphrase|secret|credential|(api|access|private)key")
_WORDS = re.compile(
    r"key|\w*token|\w*auth|authorization|bearer|pass|pwd|creds?|cookie|jwt|login"
    r"|sig|signature"
)
_OTHER_NAMES = ("error", "exception", "warning", "py")  # KeyError: ..., token.py:12
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# A name begins where no other does: that keeps this linear.
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<name>-{0,2}\w[\w.-]*)(?P<between>(?:["']\]?)?\s*[=:]\s*|["']?,?\s+)"""
)
_ASSIGNED = re.compile(r"([\w.-]+)(=|:\s*)")
_VALUE = re.compile(
    r"""\*\*\*|"(\\.|[^"\\])*"?|'(\\.|[^'\\])*'?|[\[{(][^\]})]*[\]})]?|\S+""", re.DOTALL
)
_RANDOM = re.compile(
    r"""["']?([0-9a-fA-F]{16,}"""
    r"""|(?=\S{0,80}[a-z])(?=\S{0,80}[A-Z])(?=\S{0,80}\d)[\w+/=-]{20,})"""
)
_IN_URL = re.compile(r"(?<=://)[^\s/]*(?=@)")
_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(
    A[KS]IA[0-9A-Z]{12,}                     # AWS
    | gh[oprsu]_\w{16,} | github_pat_\w{16,} | glpat-[\w-]{16,}
    | sk-[\w-]{16,} | [prs]k_(live|test)_\w{8,}
    | hf_[A-Za-z0-9]{16,}
    | xox[a-z]-[\w-]{10,}                    # Slack
    | AIza[\w-]{30,} | ya29\.[\w-]{16,}      # Google
    | npm_\w{30,} | pypi-[\w-]{16,}
    | eyJ[\w-]{8,}\.[\w-]{8,}(\.[\w-]*)?     # JSON Web Token
    | (?<=[Bb]earer\s)[\w.~+/=-]{8,} | (?<=[Bb]asic\s)[\w+/=-]{16,}
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[^-]*(-----END[^-]*-----)?
    )""",
    re.VERBOSE,
)


def redacted(text: str) -> str:
    """A text without the secrets in it."""
    text = _SHAPES.sub(LEFT_OUT, _IN_URL.sub(LEFT_OUT, text))
    parts, at = [], 0
    for match in _NAMED.finditer(text):
        if match.start() < at or not _hides(match):
            continue
        if value := _VALUE.match(text, match.end()):
            parts += [text[at : match.end()], LEFT_OUT]
            at = value.end()
    return "".join([*parts, text[at:]])


def redacted_command(arguments: Sequence[str]) -> list[str]:
    """A command without secrets: here it is known where a value ends."""
    return list(_redacted_arguments(arguments))


def _redacted_arguments(arguments: Sequence[str]) -> Iterator[str]:
    before = ""
    for argument in arguments:
        option = re.fullmatch(r"-{1,2}[\w.-]+|[\w-]+", before)
        if option and names_secret(before) and not argument.startswith("-"):
            yield LEFT_OUT
        elif (value := _start_of_value(argument)) is not None:
            yield argument[:value] + LEFT_OUT
        else:
            yield redacted(argument)
        before = argument


def _start_of_value(argument: str) -> int | None:
    """Where the secret begins in ``--api-key=X``, or in ``--env=PASSWORD=X``."""
    at = 0
    while match := _ASSIGNED.match(argument, at):
        at = match.end()
        if names_secret(match[1]):
            return at
    return None


def _hides(match: re.Match[str]) -> bool:
    """Whether a secret follows: in prose, many a "key" or "token" is harmless."""
    name, between = match["name"], match["between"]
    text, at = match.string, match.end()
    if not names_secret(name):
        return False
    if "=" in between:
        return True
    if name.startswith("-"):
        return not text.startswith(("-", "'-", '"-'), at)
    if ":" in between and (between[0] in "\"'" or not _WORDS.fullmatch(name.lower())):
        return True
    return _RANDOM.match(text, at) is not None


def names_secret(name: str) -> bool:
    """Whether a value of this name is a secret."""
    words = re.split(r"[\W_]+", _HUMP.sub("_", name).lower())
    if words[-1] in _OTHER_NAMES:
        return False
    return bool(_IN_NAMES.search("".join(words)) or any(map(_WORDS.fullmatch, words)))
