"""Removes anything that looks like a secret from records that others may read.

A secret is recognised by the name before it (``--api-key X``, ``PASSWORD=X``), by its
place in a URL, or by its own shape (``ghp_...``). It errs on the side of removing too
much, but a secret with none of these marks is not recognised.
"""

import re
from collections.abc import Iterable

LEFT_OUT = "***"

# What is in a name of words that ``_`` joins, or is one of them (not `max_tokens`).
_SECRET = re.compile(
    r"passw|passphrase|secret|credential|(api|access|private)_?key"
    r"|(?<![^_])(?P<word>key|[^\W_]*token|[^\W_]*auth|authorization|bearer|pass|pwd|creds?"
    r"|cookie|jwt|login|sig|signature)(?![^_])"
)
_OTHER_NAMES = ("error", "exception", "warning", "py")  # KeyError: ..., token.py:12
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# A name begins where no other does: that keeps this linear.
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<name>-{0,2}\w[\w.-]*)(?P<between>(?:["']\]?)?\s*[=:]\s*|["']?,?\s+)"""
)
_ASSIGNED = re.compile(r"([\w.-]+)(=|:\s*)")
_QUOTED = r""""(\\.|[^"\\])*"?|'(\\.|[^'\\])*'?"""
_VALUE = rf"""(\*\*\*|{_QUOTED}|[\[{{(][^\]}})]*[\]}})]?|\S+)"""
_ANY = re.compile(_VALUE, re.DOTALL)
_NO_OPTION = re.compile(rf"""(?!["']?-){_VALUE}""", re.DOTALL)
_RANDOM = re.compile(
    r"""(?=["']?([0-9a-fA-F]{16,}"""
    r"""|(?=\S{0,80}[a-z])(?=\S{0,80}[A-Z])(?=\S{0,80}\d)[\w+/=-]{20,}))""" + _VALUE,
    re.DOTALL,
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
        if match.start() >= at and (secret := _secret_after(match)):
            parts += [text[at : match.end()], LEFT_OUT]
            at = secret.end()
    return "".join([*parts, text[at:]])


def redacted_command(arguments: Iterable[str]) -> list[str]:
    """A command without secrets: here it is known where a value ends."""
    found, before = [], ""
    for argument in arguments:
        is_name = re.fullmatch(r"-{1,2}[\w.-]+|[\w-]+", before) and names_secret(before)
        is_value = is_name and not argument.startswith("-")
        found.append(LEFT_OUT if is_value else _redacted_argument(argument))
        before = argument
    return found


def _redacted_argument(argument: str) -> str:
    """Without the secret in ``--api-key=X``, or in ``--env=PASSWORD=X``."""
    for match in _ASSIGNED.finditer(argument):
        if names_secret(match[1]):
            return redacted(argument[: match.end()]) + LEFT_OUT
    return redacted(argument)


def _secret_after(match: re.Match[str]) -> re.Match[str] | None:
    """The secret that follows; in prose, many a "key" or "token" is harmless."""
    name, between = match["name"], match["between"]
    if not names_secret(name):
        return None
    found = _SECRET.fullmatch(name.lower())
    is_word = found is not None and found["word"] is not None
    pattern = _NO_OPTION if name.startswith("-") else _RANDOM
    if "=" in between or (":" in between and (between[0] in "\"'" or not is_word)):
        pattern = _ANY
    return pattern.match(match.string, match.end())


def names_secret(name: str) -> bool:
    """Whether a value of this name is a secret."""
    words = re.sub(r"[\W_]+", "_", _HUMP.sub("_", name).lower())
    if words.rpartition("_")[2] in _OTHER_NAMES:
        return False
    return any(map(_SECRET.search, (words, words.replace("_", ""))))
