"""One tree of everything that a script made and training may change.

It is walked when everything is there, before training begins. What the script made is
configuration: the script will make it the same. What differs from that later is state:
it is saved, and restored in place, into the same objects. Containers, arrays and
objects of known plain classes are made anew where training made them; other objects
that training made are named. Nothing is called, and no name in a checkpoint is looked
up anywhere.
"""

import collections
import enum
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.keras_internals import BACKEND
from resilient.objects import kinds, leaves
from resilient.objects.parts import (
    Globals,
    Parts,
    globals_of,
    inside,
    is_transparent,
    is_value,
    is_wrapper,
    parts_of,
    unwrapped,
)
from resilient.objects.sizing import is_long
from resilient.serialization import Entries, classes
from resilient.serialization.classes import Known
from resilient.serialization.json_values import NotEncodable, key_path
from resilient.serialization.rng import global_generators, is_generator
from resilient.state.build import build_optimizer

MISSING = object()  # stands for no value
# Containers of which new ones can be made, by name.
CONTAINERS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(list, dict, collections.deque, collections.OrderedDict),
        *(collections.Counter, collections.defaultdict),
    )
}
_KEPT = 1 << 20  # most bytes of content that are remembered, to undo changes
# What Keras may keep for itself, unlike variables, generators and other objects.
_KEEPING = (list, dict, set, collections.deque, np.ndarray)
_GLOBALS, _CONTENTS = ":globals", ".cell_contents"
_AFTER_ROOT = frozenset({"", ".", "[", ":", "(", "'", " ", "+"})
# How an object counts: as a container of Keras's own; as state; or as state that is
# named at once if no checkpoint can hold it.
_MUTED, _STATE, _NAMED = 0, 1, 2


@dataclass(frozen=True)
class Scope:
    """What of the objects in a tree is state.

    Attributes:
        own: Returns the ids of variables that are saved elsewhere.
        hidden: Attributes that are handled elsewhere, by name of an object.
        traced: Whether training steps are compiled, so that they read only variables.
        limit: Bytes of content that are read whole; 0 to read none. Where it is
            limited, as for data, large containers are not looked into, and unknown
            objects are not named.
        asks: Whether to call ``state_dict`` on the objects themselves.
    """

    own: Callable[[], AnySet[int]] = frozenset
    hidden: Mapping[str, AnySet[str]] = field(default_factory=dict)
    traced: bool = False
    limit: float = math.inf
    asks: bool = True

    @property
    def is_limited(self) -> bool:
        """Whether the objects may hold gigabytes of data."""
        return self.limit < math.inf

    def visible(self, home: str, parts: Parts) -> Parts:
        """The parts of the object at home there, without what is handled elsewhere."""
        hidden = self.hidden.get(home, ())
        return parts.without(hidden) if hidden else parts

    def parts_of(self, home: str, value: Any) -> Parts | None:
        """The visible parts of an object, as it is now; None if it has none."""
        parts = parts_of(value)
        return None if parts is None else self.visible(home, parts)


@dataclass(eq=False, slots=True)
class Node:
    """One object, as it was when training began.

    Attributes:
        home: The path at which it was met first; its name in a checkpoint.
        value: The object.
        kind: The kind of its content, ``"parts"`` or ``"opaque"``.
        parts: What it consisted of.
        mark: A checksum of its content.
        kept: Its content, if that is small.
        learned: Whether a callback made it when training began: all of it is state.
        state: Whether it is more than a container of Keras's own.
        in_step: Whether the training step may read it.
        outside: Whether anything else may.
        size: How many attributes it had, Keras's own included.
    """

    home: str
    value: Any
    kind: str = "opaque"
    parts: Parts | None = None
    mark: str | None = None
    kept: Any = None
    learned: bool = False
    state: bool = False
    in_step: bool = False
    outside: bool = False
    size: int = -1


class Tree:
    """Objects, and everything that they refer to.

    Args:
        objects: Name to object.
        step: Name to object of what the training step may read.
        scope: What is state.
        since: An earlier tree: objects that it knows count as they were then.
        apart: Objects that are not looked into.

    Attributes:
        scope: The same.
        nodes: Each object by id.
        homes: Each object by home.
        own: Ids of variables that are saved elsewhere.
        known: Classes of which new objects can be made.
        lost: Names of what no checkpoint holds.
        baked: Names of what changed although traced steps had read it before.
        moving: Names of what tracing itself changes, in each process.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        step: Mapping[str, Any] | None = None,
        scope: Scope | None = None,
        *,
        since: "Tree | None" = None,
        apart: Iterable[Any] = (),
    ) -> None:
        self.scope = scope or Scope()
        self._objects, self._step = dict(objects), dict(step or {})
        self._roots = self._objects | self._step
        every = [*apart, *global_generators().values()]
        self._apart = {id(each): each for each in every}
        self._since = {} if since is None else since.nodes
        self._globals: dict[int, Globals] = {}
        if since is not None:
            self._globals |= since._globals
        self.nodes: dict[int, Node] = {}
        self.homes: dict[str, Node] = {}
        self.own: AnySet[int] = frozenset()
        self.known: Known = Known()
        self.lost: dict[str, None] = {}
        self.baked: dict[str, None] = {}
        self.moving: frozenset[str] = frozenset()
        self._watched: list[Node] | None = None
        self._unbuilt: list[Node] = []
        self._learning = False
        self._level = _STATE
        self._walk()

    def begin_steps(self) -> None:
        """The first step is about to be traced, with what it reads now."""
        for node in self.watched():
            if not self.is_baked(node) or node.outside:
                continue
            if node.parts is not None:
                node.parts = self.scope.parts_of(node.home, node.value)
            elif not leaves.is_fixed(node.value, node.kind):
                self._read(node, _STATE)

    def take_built(self) -> None:
        """What Keras has made meanwhile in objects of its own is no change."""
        built = [node for node in self._unbuilt if _is_built(node.value)]
        for node in built:
            node.parts = self.scope.parts_of(node.home, node.value)
        if built:
            self._unbuilt = [node for node in self._unbuilt if node not in built]

    def watched(self) -> list[Node]:
        """The objects that may hold state."""
        if self._watched is None:
            self._watched = [
                node
                for node in self.homes.values()
                if node.state and node.kind != "opaque"
            ]
        return self._watched

    def is_baked(self, node: Node) -> bool:
        """Whether a traced step has read it once and for all."""
        if not (self.scope.traced and node.in_step):
            return False
        return node.kind != "variable" or BACKEND == "jax"

    def fills(self, node: Node) -> bool:
        """Whether it is a cache or log of a layer, say, which fills with each trace."""
        models = (n for n, x in self._step.items() if keras_internals.is_trainer(x))
        return not any(is_below(node.home, name) for name in (*models, *self._objects))

    def lacks(self, entries: Entries) -> bool:
        """Whether a checkpoint has objects that are not there yet."""
        return any("made" not in x and h not in self.homes for h, x in entries.items())

    def can_be_made(self, value: Any) -> bool:
        """Whether a new object can take its place: nothing has to be called."""
        cls, kind = type(value), leaves.kind_of(value)
        if kind is not None or isinstance(value, Globals):
            return kind in leaves.MADE
        if isinstance(value, list | dict | collections.deque):
            return cls in CONTAINERS.values() or is_wrapper(cls)
        name = classes.reference(cls) if classes.is_plain(cls) else None
        return name is not None and self.known.get(name) is cls

    def is_handle(self, before: Any, value: Any) -> bool:
        """Whether data opened something on demand, or opened it anew."""
        if not self.scope.is_limited:
            return False
        if before is not None and type(before) is not type(value):
            return False
        if is_value(value) or is_transparent(value) or leaves.is_iterator(value):
            return False
        if kinds.is_code(value) or id(value) in self.nodes:
            return False
        return self._kind_of(value)[0] in ("opaque", "file", "memory")

    # Names ---------------------------------------------------------------------------

    def name(self, path: str, value: Any) -> str:
        """As ``"MyCallback.attribute (type)"``, for messages."""
        cls = type(value)
        known = cls.__module__ in ("builtins", "__main__")
        kind = cls.__qualname__ if known else f"{cls.__module__}.{cls.__qualname__}"
        return f"{self.label(path)} ({kind})"

    def label(self, path: str) -> str:
        """A path as users read it."""
        found = [name for name in self._objects if is_below(path, name)]
        root, path = max(found, key=len, default=None), path.replace(_CONTENTS, "")
        if root is None:
            return path
        name = type(self._objects[root]).__qualname__.rpartition("<locals>.")[2]
        return name + path.removeprefix(root)

    # The walk ------------------------------------------------------------------------

    def learn(self, *, by_step: bool = False) -> None:
        """Take in what was made since, such as by ``on_train_begin``.

        Every attempt makes it, so that it can be restored; all of it is state.

        Args:
            by_step: Only what a training step made, which a resume tries first.
        """
        self._learning = True
        self.own, self._watched = self.scope.own(), None
        seen: set[int] = set()
        for node in list(self.homes.values()):
            if (by_step and not node.in_step) or node.parts is None:
                continue
            if not is_same(node, muted=True):
                self._visit([*self._inside(node, int(node.state))], seen, node)

    def _walk(self) -> None:
        self.own = self.scope.own()
        for name, value in self._roots.items():
            if id(value) not in self.nodes and not _is_part(value):
                self._register(value, name, _STATE)
        for outside, names in ((True, self._objects), (False, self._step)):
            named = outside and not self.scope.is_limited
            self._level = _NAMED if named else _STATE
            seen: set[int] = set()
            origin = Node("", None, in_step=not outside, outside=outside)
            for name in names:
                self._visit([(self._roots[name], name, self._level)], seen, origin)
        self.known.close()

    def _visit(self, todo: list[Any], seen: set[int], origin: Node) -> None:
        """Register objects and what they refer to.

        Args:
            todo: The objects, with paths and how they count.
            seen: Ids of what was visited.
            origin: What refers to them.
        """
        while todo:
            value, path, level = todo.pop()
            value = unwrapped(value)
            if is_value(value) or id(value) in self._apart:
                continue
            if is_transparent(value):
                self._admit(type(value))
                if isinstance(value, frozenset) and any(map(_is_one, value)):
                    self.lost[self.name(path, value)] = None  # of no order
                inner = inside(value).items()
                todo += [(x, path + suffix, level) for suffix, x in reversed(inner)]
                continue
            if level == _MUTED and not self._is_kept(value):
                level = _STATE
            node = self.nodes.get(id(value)) or self._register(value, path, level)
            node.in_step |= origin.in_step
            node.outside |= origin.outside
            known = id(value) in seen and (node.state or not level)
            node.state |= level > _MUTED
            elsewhere = node.home in self._roots and node.home != path
            if known or elsewhere or node.parts is None:
                continue
            seen.add(id(value))
            todo += reversed([*self._inside(node, level)])

    def _is_kept(self, value: Any) -> bool:
        """Whether it is no state where Keras, or a function of data, refers to it."""
        if isinstance(value, Globals):
            return self.scope.is_limited
        return isinstance(value, _KEEPING)

    def _inside(self, node: Node, level: int) -> Iterator[tuple[Any, str, int]]:
        """What is in an object, with paths and how it counts."""
        value, home = node.value, node.home
        parts = parts_of(value) if self._learning else node.parts
        if parts is None:
            return
        if isinstance(value, types.FunctionType):
            level_of_globals = _MUTED if self.scope.is_limited else _STATE
            for values, name in globals_of(value):
                found = self._global(values, name, home)
                yield found, f"{home}{_GLOBALS}", _MUTED
                # Others may have used other names of the same module before.
                path = path_of(self.nodes[id(found)].home, name)
                yield values[name], path, level_of_globals
        inner = self._level
        if isinstance(value, Globals | types.CellType):
            inner = _MUTED if level == _MUTED else _STATE
        for name, item in self.scope.visible(home, parts).attributes.items():
            yield item, path_of(home, name), inner
        if parts.items is not None:
            # Keras's own keys may be automatic names, which differ between processes.
            for suffix, item in _items(value, parts.items, named=level > _MUTED):
                yield item, home + suffix, level
        for suffix, item in parts.muted.items():
            yield item, home + suffix, _MUTED
        for suffix, item in parts.others.items():
            yield item, home + suffix, _STATE

    def _global(self, values: dict[str, Any], name: str, path: str) -> Globals:
        found = self._globals.setdefault(id(values), Globals(values))
        node = self.nodes.get(id(found))
        node = node or self._register(found, f"{path}{_GLOBALS}", _STATE)
        if name not in found.names:
            found.names.add(name)
            node.parts = parts_of(found)
        return found

    def _register(self, value: Any, path: str, level: int) -> Node:
        if self._learning and self.can_be_made(value):  # it will be made anew
            return Node(path, value, "parts", parts_of(value))
        home = path
        while home in self.homes:
            home += "'"
        node = Node(home, value)
        self.nodes[id(value)] = self.homes[home] = node
        if BACKEND == "torch" and isinstance(value, keras.Variable):
            self.nodes[id(value._value)] = node  # which is one more name for it
        elif isinstance(value, np.random.Generator):
            self.nodes[id(value.bit_generator)] = node
        self._admit(value if isinstance(value, type) else type(value))
        known = self._since.get(id(value))
        if known is not None:
            node.kind, node.parts, node.mark = known.kind, known.parts, known.mark
            node.kept, node.learned = known.kept, known.learned
        elif id(value) not in self.own and not isinstance(value, enum.Enum):
            self._remember(node, level, root=path in self._objects)
        return node

    def _remember(self, node: Node, level: int, *, root: bool) -> None:
        value = node.value
        trained = keras_internals.is_trainer(value) and node.home not in self._step
        if trained and build_optimizer(value):
            built = self.nodes.get(id(value.optimizer))
            if built is not None:
                built.parts = parts_of(value.optimizer)
        node.kind, node.parts = self._kind_of(value, root=root)
        if node.parts is not None:
            node.parts = self.scope.visible(node.home, node.parts)
            if not _is_built(value):
                self._unbuilt.append(node)
            node.learned = self._learning and not _is_made_alike(value)
        elif node.kind != "opaque":
            node.learned = self._learning
            if not self._learning and self.scope.limit:
                self._read(node, level)
        elif not kinds.is_configuration(value) and (
            level == _NAMED or (level == _STATE and leaves.is_iterator(value))
        ):
            self.lost[self.name(node.home, value)] = None

    def _kind_of(self, value: Any, *, root: bool = False) -> tuple[str, Parts | None]:
        """How an object is looked at, and its parts."""
        data = self.scope.is_limited
        if isinstance(value, Globals):
            return "parts", parts_of(value)
        kind = leaves.kind_of(value, files=data)
        if kind is not None and not (
            root and kind == "state_dict" and not self.scope.asks
        ):
            return kind, None
        if data and isinstance(value, list | dict | set) and is_long(value):
            return "long", None
        opaque = not root and kinds.is_opaque(value, data=data)
        parts = None if opaque else parts_of(value)
        return ("opaque" if parts is None else "parts"), parts

    def _read(self, node: Node, level: int) -> None:
        """Remember the content of an object, to see and undo changes."""
        value = node.value
        try:
            node.mark = leaves.mark(value, node.kind, self.scope.limit)
            if node.kind == "long":
                node.kept = leaves.items_of(value)
            elif (
                node.kind not in ("library", "state_dict", "key")
                and getattr(value, "nbytes", 0) <= _KEPT
            ):
                arrays: dict[str, np.ndarray] = {}
                content = leaves.encoded(value, node.kind, arrays, "content")
                node.kept = content, {n: np.array(a) for n, a in arrays.items()}
        except NotEncodable:
            if node.kind == "state_dict":  # it is named at the first save
                return
            node.kind = "opaque"
            if level == _NAMED:
                self.lost[self.name(node.home, value)] = None

    def _admit(self, cls: type) -> None:
        plain = classes.is_plain(cls) or issubclass(cls, enum.Enum)
        if not self._learning and (plain or hasattr(cls, "_fields")):
            self.known.add(cls)


def paths(entries: Entries) -> list[str]:
    """Where something changed."""
    found: dict[str, None] = {}
    for home, entry in entries.items():
        names = [path_of(home, name) for name in entry.get("attributes", ())]
        found |= {n.removesuffix(_CONTENTS): None for n in names or [home]}
    return list(found)


def path_of(home: str, name: str) -> str:
    """The path of an attribute of the object at home there."""
    function, of_globals, rest = home.partition(_GLOBALS)
    if of_globals and not rest:
        return f"{function} uses {name}"
    return f"{home}.{name}" if name.isidentifier() else f"{home}[{name!r}]"


def is_below(path: str, name: str) -> bool:
    """Whether a path leads from the object of this name."""
    return path.startswith(name) and path[len(name) : len(name) + 1] in _AFTER_ROOT


def is_same(node: Node, *, muted: bool = False) -> bool:
    """Whether an object still holds the very same objects; ``muted``: Keras's, too."""
    parts, value = node.parts, node.value
    if (node.learned and not muted) or parts is None or lost_code(node):
        return False
    if parts.items is not None and not are(leaves.items_of(value), parts.items):
        return False
    space = _namespace(value)
    if space is None or len(space) != node.size:
        found = parts_of(value)
        if found is None or found.attributes.keys() != parts.attributes.keys():
            return False
        if space is None:
            space = found.attributes
        else:
            node.size = len(space)  # Keras added something of its own
    for name, item in parts.attributes.items():
        if space.get(name, MISSING) is not item:
            return False
    return not muted or all(
        space.get(name[1:], MISSING) is item for name, item in parts.muted.items()
    )


def lost_code(node: Node) -> list[str]:
    """Suffixes of methods, defaults and the like that are no longer the same."""
    if node.parts is None or not isinstance(node.value, types.FunctionType | type):
        return []
    parts = parts_of(node.value)
    now = {} if parts is None else parts.others
    return [s for s, x in node.parts.others.items() if now.get(s) is not x]


def _namespace(value: Any) -> Mapping[str, Any] | None:
    """The attributes of an object, if they are in one place and nowhere else."""
    if isinstance(value, Globals):
        return value.values
    if isinstance(value, type):
        return vars(value)
    if isinstance(value, types.CellType) or classes.has_slots(type(value)):
        return None
    found: dict[str, Any] = getattr(value, "__dict__", {})
    return found


def are(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    """Whether both have the very same items."""
    return len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))


def _items(
    owner: Any, items: tuple[Any, ...], *, named: bool
) -> Iterator[tuple[str, Any]]:
    """The objects in a container, by the suffixes of their paths."""
    if not isinstance(owner, dict):
        for index, item in enumerate(items):
            if not is_value(item):
                yield f"[{index}]", item
        return
    half = len(items) // 2
    for index, (key, item) in enumerate(zip(items[:half], items[half:], strict=True)):
        # Torch lists Keras's variables there, under automatic names.
        of_torch = type(key) is str and key == "_torch_params"
        if not (is_value(item) or of_torch):
            yield (
                key_path(key, index) if named and is_value(key) else f"[{index}]",
                item,
            )
        if not is_value(key):
            yield f" key {index}", key


def _is_part(value: Any) -> bool:
    """Whether an object belongs to the first of others that holds it."""
    return is_value(value) or is_generator(value)


def _is_one(value: Any) -> bool:
    """Whether an object is not equal to any other."""
    of_class: Any = type(value).__hash__
    return of_class is object.__hash__ and parts_of(value) is not None


def _is_built(value: Any) -> bool:
    """Whether an object of Keras has what it makes when it is first used."""
    return not kinds.is_keras(value) or bool(vars(value).get("built", True))


def _is_made_alike(value: Any) -> bool:
    """Whether what an object is made with is configuration, whoever makes it."""
    if isinstance(value, types.FunctionType | types.CellType | type | Globals):
        return True
    callback = isinstance(value, keras.callbacks.Callback)
    return kinds.is_keras(value) and not callback
