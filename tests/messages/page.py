"""Lists every message in docs/troubleshooting/, from the code.

python tests/messages/page.py        writes the pages anew
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "troubleshooting"
MARK = "<!-- From here on written by tests/messages/page.py -->\n"

# What `message` words is an error of Python's own; the others are reasons in errors.
OF_PYTHON = "Errors of Python (`ValueError`, `TypeError`...)"
OF_RUN = "Giving up"
INNER = {"MalformedError", "SchemaError", "DamageError", "ManifestError"}
# Warnings say in the same sentence what to do, and have no remedy apart.
NOT_EXACT = "Warnings (`NotExactWarning`)"
LOGGED = "Warnings in the log"

Names = Mapping[str, Sequence[ast.expr]]


class Topic(NamedTuple):
    """A page: the messages of some modules, of which the longest path decides."""

    title: str
    about: str
    modules: str


TOPICS = {
    "resuming": Topic(
        "A resume is refused or differs",
        "The script, the directory, the environment or what is trained is another.",
        "training saving state keras_internals witness",
    ),
    "arguments": Topic(
        "Arguments",
        "An argument of `fit`, `Run`, a policy or a decorator has a wrong value.",
        "policies errors training/options training/fit/api preemption/requests "
        "storage/remote/options backends/__init__ backends/determinism",
    ),
    "data": Topic(
        "Data",
        "Training data has no position, or is not what it was before the restart.",
        "data serialization/batches serialization/position",
    ),
    "callbacks-and-state": Topic(
        "Callbacks, objects and random state",
        "Something that should be saved or restored cannot be.",
        "objects serialization state/rng training/state backends/arrays",
    ),
    "custom-loops": Topic(
        "Custom training loops",
        "`resilient.Run` or `resilient.Checkpoints` is called in the wrong place.",
        "training/loop saving/variables_only",
    ),
    "distributed": Topic(
        "Distributed training",
        "Several processes disagree, cannot connect, or changed in number.",
        "distributed saving/parts saving/reshard training/boundaries training/session",
    ),
    "many-fits": Topic(
        "Tuners and many fits",
        "`resilient.enabled`, `BackupAndRestore` or KerasTuner meets a changed script.",
        "training/enabled training/fit/hook training/under_way",
    ),
    "checkpoints": Topic(
        "Damaged or missing checkpoints",
        "A checkpoint cannot be read, trusted or found.",
        "storage/checkpoint storage/manifest storage/layout "
        "storage/recovery backends saving/choose saving/record "
        "saving/compare",
    ),
    "saving-and-disk": Topic(
        "Saving, disks and locks",
        "A checkpoint cannot be written, or the directory is in use.",
        "storage saving/checkpointer saving/writer saving/snapshot telemetry",
    ),
    "object-stores": Topic(
        "Object stores",
        "A run in `s3://`, `gs://` or `az://` cannot be uploaded or fetched.",
        "storage/remote",
    ),
    "importing-and-exporting": Topic(
        "Importing and exporting",
        "A file of Keras or safetensors cannot be read or written.",
        "convert",
    ),
    "stopping": Topic(
        "Preemption and divergence",
        "A request to stop, or a loss that is not finite, cannot be handled.",
        "preemption training/rollback",
    ),
    "command-line": Topic(
        "The command line",
        "The command `resilient` refuses its arguments, or gives up restarting.",
        "cli supervise report prove training/trial",
    ),
}


def pages() -> dict[Path, str]:
    """Each page as it should be."""
    told = _found()
    index = FOLDER / "index.md"
    by_hand = index.read_text().partition(MARK)[0]
    return {
        index: by_hand + MARK + "\n".join(_index(told)),
        **{
            FOLDER / f"{name}.md": "\n".join(_page(topic, told[name]))
            for name, topic in TOPICS.items()
        },
    }


Told = dict[str, set[tuple[str, ...]]]


def _found() -> dict[str, Told]:
    """The messages of each topic, by kind."""
    modules = {
        path.relative_to(ROOT / "resilient").with_suffix("").as_posix(): ast.parse(
            path.read_text()
        )
        for path in sorted((ROOT / "resilient").rglob("*.py"))
    }
    shared: dict[str, Sequence[ast.expr]] = {}
    for tree in modules.values():
        shared |= _assigned(tree.body)
    found: dict[str, Told] = {name: defaultdict(set) for name in TOPICS}
    for module, tree in modules.items():
        for kind, *told in _messages(tree, shared | _assigned(tree.body)):
            of_run = kind == OF_PYTHON and module.startswith("supervise/")
            found[_topic_of(module)][OF_RUN if of_run else kind].add(tuple(told))
    return found


def _topic_of(module: str) -> str:
    covers = {
        len(prefix): name
        for name, topic in TOPICS.items()
        for prefix in topic.modules.split()
        if f"{module}/".startswith(f"{prefix}/")
    }
    if not covers:
        raise LookupError(f"no topic in TOPICS covers the messages of {module}")
    return covers[max(covers)]


def _index(told: Mapping[str, Told]) -> Iterator[str]:
    yield "\n## Find a message\n"
    yield "This site's search finds a message by its words. Or go by the topic, the"
    yield "class of the error, or a name in the message:\n"
    yield "| page | what happened | classes, and names in messages |\n|---|---|---|"
    named = {
        page: {
            name.replace("\\", "")
            for text in (text for group in kinds.values() for text, *_ in group)
            for name in NAME.findall(text)
        }
        for page, kinds in told.items()
    }
    often = Counter(name for names in named.values() for name in names)
    for page, topic in TOPICS.items():
        names = {name for name in named[page] if often[name] < 3}
        names |= {kind.strip("`") for kind in told[page] if kind.startswith("`")}
        listed = " ".join(f"`{name}`" for name in sorted(names, key=str.lower))
        yield f"| [{topic.title}]({page}.md) | {topic.about} | {listed} |"
    yield "\n```{toctree}\n:hidden:\n"
    yield from TOPICS
    yield "```\n"


# In a message, what is of code: an underscore or dot inside, or capitals.
NAME = re.compile(
    r"\b[A-Za-z]\w*(?:(?:\\_|\.)[A-Za-z]\w*)+|\b[A-Z]\w*[a-z][A-Z]\w*|\b[A-Z]{4,}\b"
)


def _page(topic: Topic, told: Told) -> Iterator[str]:
    yield f"# {topic.title}\n\n{MARK}\n{topic.about} An ellipsis stands for a value."
    last = (NOT_EXACT, LOGGED)
    for kind in sorted(told, key=lambda kind: (kind in last, kind)):
        yield f"\n## {kind}"
        by_remedy = defaultdict(list)
        for text, *remedy in sorted(told[kind]):
            by_remedy["".join(remedy)].append(text)
        if alone := by_remedy.pop("", ()):
            yield "\n" + "\n".join(f"* {text}" for text in alone)
        for remedy, texts in by_remedy.items():
            yield f"\n{'<br>'.join(texts)}\n: {remedy}"
    yield ""


def _messages(tree: ast.Module, constants: Names) -> Iterator[tuple[str, ...]]:
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            continue
        nodes = sorted(_own(function), key=lambda node: getattr(node, "lineno", 0))
        names, new = dict(constants), set[str]()
        for node in nodes:
            if isinstance(node, ast.Assign):
                for name in _names(node):  # several between two messages: one of them
                    before = names[name] if name in new else ()
                    names[name] = (*before, node.value)
                    new.add(name)
            elif isinstance(node, ast.AnnAssign) and node.value:
                if ast.unparse(node.annotation) == "Inexact":  # said elsewhere
                    yield NOT_EXACT, _text(node.value, names).replace("{}", "…")
            elif isinstance(node, ast.Call) and (told := _told(node, names)):
                yield told
                new.clear()


def _told(call: ast.Call, names: Names) -> tuple[str, ...] | None:
    """The kind of a message and its texts, if a call makes one."""
    if not call.args:
        return None
    text = _text(call.args[0], names)
    text = text.strip() if re.search("[A-Za-z]{3}", text) else ""
    match call.func:
        case ast.Name("message"):
            kind = OF_PYTHON
        case ast.Name(name) if name.endswith("Error") and name not in INNER:
            kind = f"`{name}`"
        case ast.Attribute(_, "refuse"):
            kind = "`DataNotResumableError`"
        case ast.Name("unwritable") | ast.Attribute(_, "unwritable"):
            kind, text = "`CheckpointWriteError`", f"{text}: …."
        case ast.Name("say_once") | ast.Attribute(_, "say_once"):
            return (LOGGED, text) if text else None
        case ast.Name("warn_not_exact") | ast.Attribute(_, "_say") if call.args[1:]:
            return (NOT_EXACT, text) if text else None
        case ast.Attribute(ast.Name("logger" | "warnings"), "warning" | "warn"):
            not_exact = "NotExactWarning" in ast.dump(call)
            return (NOT_EXACT if not_exact else LOGGED, text) if text else None
        case _:
            return None
    if not (text and call.keywords):
        return None
    hints = [each.value for each in call.keywords if each.arg == "hint"]
    return kind, text, "".join(_text(hint, names) for hint in hints)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in a function, but for what is in functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield from _own(child)


def _assigned(nodes: Sequence[ast.stmt]) -> dict[str, Sequence[ast.expr]]:
    return {
        name: (node.value,)
        for node in nodes
        if isinstance(node, ast.Assign)
        for name in _names(node)
    }


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _text(node: ast.expr, names: Names) -> str:
    """A text of Markdown, with an ellipsis for each value that is filled in."""
    match node:
        case ast.Name(name):
            others = {k: values for k, values in names.items() if k != name}
            return _one_of([_text(value, others) for value in names.get(name, ())])
        case ast.Dict():
            return _one_of([_text(value, names) for value in node.values])
        case ast.Subscript(ast.Name() as table):
            return _text(table, names)
        case ast.Call(ast.Attribute(ast.Name() as table, "get"), [_, default]):
            return _one_of([_text(table, names), _text(default, names)])
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, names)} / {_text(node.orelse, names)}"
    if isinstance(node, ast.BinOp):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, names) or "…" for part in node.values]
        return re.sub(r"…+", "…", "".join(parts))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return _text(node.value, names) if node.value.id.isupper() else ""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return ""
    text = re.sub(r"%[a-z]", "…", node.value)
    return re.sub(r"([|<>*_\\])", r"\\\1", text).replace("\n", " ")


def _one_of(texts: Sequence[str]) -> str:
    return " / ".join(dict.fromkeys(filter(None, texts)))


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
