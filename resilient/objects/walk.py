"""The walk through everything that some objects refer to.

It is done when everything is there, before training begins; it calls nothing.
"""

import collections
import enum
import functools
import math
import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from resilient.keras_internals import BACKEND, is_trainer
from resilient.objects import kinds, leaves
from resilient.objects.parts import (
    Globals,
    Node,
    Parts,
    is_wrapper,
    parts_of,
    way_of,
)
from resilient.serialization import classes
from resilient.serialization.classes import Known
from resilient.serialization.json_types import BY_TYPE
from resilient.serialization.json_values import NotEncodable, key_path
from resilient.serialization.rng import global_generators, is_generator
from resilient.state.build import build_optimizer
from resilient.state.functions import global_names

# Containers of which new ones can be made, by name.
CONTAINERS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(list, dict, collections.deque, collections.OrderedDict),
        *(collections.Counter, collections.defaultdict),
    )
}
# What Keras may keep for itself, unlike variables, generators and other objects.
_KEEPING = (list, dict, set, collections.deque, np.ndarray)
_GLOBALS, CONTENTS = ":globals", ".cell_contents"
_AFTER_ROOT = frozenset({"", ".", "[", ":", "(", "'", " ", "+"})
# How an object counts: as a container of Keras's own; as state; or as state that is
# named at once if no checkpoint can hold it.
_MUTED, STATE, _NAMED = 0, 1, 2
_SCALARS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(...), slice, range}
)
# Types with a codec that can change.
_MUTABLE = frozenset(
    {set, frozenset, tuple, bytearray, random.Random, *CONTAINERS.values()}
    | {cls for cls in BY_TYPE if cls.__module__.startswith("numpy")}
)
_OF_NUMPY = (np.generic, np.dtype)
_TRANSPARENT = (tuple, frozenset, functools.partial, types.MethodType)
_WRAPPED = (dict, tuple)  # by TensorFlow
_CELLS = (Globals, types.CellType)
_CODE = (types.FunctionType, type, *_CELLS)
_VALUES = _SCALARS | (BY_TYPE.keys() - _MUTABLE)


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

    @functools.cached_property
    def is_limited(self) -> bool:
        """Whether the objects may hold gigabytes of data."""
        return self.limit < math.inf

    def parts_of(self, home: str, value: Any) -> Parts | None:
        """What the object at home there consists of, and is not handled elsewhere."""
        return parts_of(value, self.hidden.get(home, ()))


class Walk:
    """A walk through objects, and everything that they refer to.

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
        sets: The items of changed sets at the last capture, by home.
        baked: Names of what changed although traced steps had read it before.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        step: Mapping[str, Any] | None = None,
        scope: Scope | None = None,
        *,
        since: "Walk | None" = None,
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
        self.sets: dict[str, set[Any]] = {}
        self.baked: dict[str, None] = {}
        self._unbuilt: list[Node] = []
        self._learning = False
        self._level = STATE
        self._walk()

    def _walk(self) -> None:
        self.own = self.scope.own()
        for name, value in self._roots.items():
            # A generator belongs to the first of the others that holds it.
            part = is_value(value) or is_generator(value)
            if id(value) not in self.nodes and not part:
                self._register(value, name, STATE)
        for outside, names in ((True, self._objects), (False, self._step)):
            named = outside and not self.scope.is_limited
            self._level = _NAMED if named else STATE
            seen: set[int] = set()
            origin = Node("", None, in_step=not outside, outside=outside)
            for name in names:
                self._visit([(self._roots[name], name, self._level)], seen, origin)
        self.known.close()

    def name(self, path: str, value: Any) -> str:
        """As ``"MyCallback.attribute (type)"``, for messages."""
        cls = type(value)
        known = cls.__module__ in ("builtins", "__main__")
        kind = cls.__qualname__ if known else f"{cls.__module__}.{cls.__qualname__}"
        return f"{self.label(path)} ({kind})"

    def label(self, path: str) -> str:
        """A path as users read it."""
        found = [name for name in self._objects if is_below(path, name)]
        root, path = max(found, key=len, default=None), path.replace(CONTENTS, "")
        if root is None:
            return path
        name = type(self._objects[root]).__qualname__.rpartition("<locals>.")[2]
        return name + path.removeprefix(root)

    def can_be_made(self, value: Any) -> bool:
        """Whether a new object can take its place: nothing has to be called."""
        cls, kind = type(value), kinds.kind_of(value)
        if kind is not None or isinstance(value, Globals):
            return kind in leaves.MADE
        if isinstance(value, list | dict | collections.deque):
            return cls in CONTAINERS.values() or is_wrapper(cls)
        name = classes.reference(cls) if classes.is_plain(cls) else None
        return name is not None and self.known.get(name) is cls

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
                level = STATE
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

    def _visit_inside(self, nodes: Iterable[Node]) -> None:
        """Take in what is in these objects now."""
        seen: set[int] = set()
        for node in nodes:
            self._visit([*self._inside(node, int(node.state))], seen, node)

    def _is_kept(self, value: Any) -> bool:
        """Whether it is no state where Keras, or a function of data, refers to it."""
        if isinstance(value, Globals):
            return self.scope.is_limited
        return isinstance(value, _KEEPING)

    def _inside(self, node: Node, level: int) -> Iterator[tuple[Any, str, int]]:
        """What is in an object, with paths and how it counts."""
        value, home, parts = node.value, node.home, node.parts
        if self._learning:
            parts = self.scope.parts_of(home, value)
        if parts is None:
            return
        if isinstance(value, types.FunctionType):
            level_of_globals = _MUTED if self.scope.is_limited else STATE
            for values, name in global_names(value):
                found = self._global(values, name, home)
                yield found, f"{home}{_GLOBALS}", _MUTED
                # Others may have used other names of the same module before.
                path = path_of(self.nodes[id(found)].home, name)
                yield values[name], path, level_of_globals
        inner = self._level
        if isinstance(value, _CELLS):
            inner = _MUTED if level == _MUTED else STATE
        for name, item in parts.attributes.items():
            if type(item) not in _VALUES:
                yield item, path_of(home, name), inner
        if parts.items is not None:
            # Keras's own keys may be automatic names, which differ between processes.
            for suffix, item in _items(value, parts.items, named=level > _MUTED):
                yield item, home + suffix, level
        for suffix, item in parts.muted.items():
            if type(item) not in _VALUES:
                yield item, home + suffix, _MUTED
        for suffix, item in parts.others.items():
            yield item, home + suffix, STATE

    def _global(self, values: dict[str, Any], name: str, path: str) -> Globals:
        found = self._globals.setdefault(id(values), Globals(values))
        node = self.nodes.get(id(found))
        node = node or self._register(found, f"{path}{_GLOBALS}", STATE)
        if name not in found.names:
            found.names.add(name)
            node.take()
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
            node.kept, node.learned, node.size = known.kept, known.learned, -1
        elif id(value) not in self.own and not isinstance(value, enum.Enum):
            self._remember(node, level, root=path in self._objects)
        return node

    def _remember(self, node: Node, level: int, *, root: bool) -> None:
        value = node.value
        trained = is_trainer(type(value)) and node.home not in self._step
        if trained and build_optimizer(value):
            built = self.nodes.get(id(value.optimizer))
            if built is not None:
                built.take()
        node.kind = self._kind_of(value, root=root)
        if node.kind == "parts":
            node.take(self.scope.hidden.get(node.home, ()))
            node.kind = "opaque" if node.parts is None else "parts"
        if node.parts is not None:
            if not is_built(value):
                self._unbuilt.append(node)
            node.learned = self._learning and not _is_made_alike(value)
        elif node.kind != "opaque":
            node.learned = self._learning
            if not self._learning and self.scope.limit:
                self._read(node, level)
        elif not kinds.is_configuration(type(value)) and (
            level == _NAMED or (level == STATE and kinds.is_iterator(value))
        ):
            self.lost[self.name(node.home, value)] = None

    def _kind_of(self, value: Any, *, root: bool = False) -> str:
        """How an object is looked at."""
        data, cls = self.scope.is_limited, type(value)
        if cls is Globals:
            return "parts"
        kind = kinds.kind_of_class(cls)
        if kind == kinds.ASK:
            kind = kinds.kind_of(value, files=data)
        if kind is not None and not (
            root and kind == "state_dict" and not self.scope.asks
        ):
            return kind
        if data and isinstance(value, list | dict | set) and kinds.is_long(value):
            return "long"
        is_opaque = kinds.is_opaque_in_data if data else kinds.is_opaque
        opaque = not root and is_opaque(cls)
        return "opaque" if opaque or way_of(cls) is None else "parts"

    def _read(self, node: Node, level: int) -> None:
        """Remember the content of an object, to see and undo changes."""
        value = node.value
        try:
            node.mark, node.kept = leaves.remembered(value, node.kind, self.scope.limit)
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


def path_of(home: str, name: str) -> str:
    """The path of an attribute of the object at home there."""
    function, of_globals, rest = home.partition(_GLOBALS)
    if of_globals and not rest:
        return f"{function} uses {name}"
    return f"{home}.{name}" if name.isidentifier() else f"{home}[{name!r}]"


def is_below(path: str, name: str) -> bool:
    """Whether a path leads from the object of this name."""
    return path.startswith(name) and path[len(name) : len(name) + 1] in _AFTER_ROOT


def unwrapped(value: Any) -> Any:
    """The dict or tuple inside one of TensorFlow's, which only looks like one."""
    if isinstance(value, _WRAPPED) and classes.top_module(type(value)) == "tensorflow":
        return getattr(value, "__wrapped__", value)
    return value


def is_value(value: Any) -> bool:
    """Whether it cannot change, and its identity does not matter."""
    return type(value) in _VALUES or isinstance(value, _OF_NUMPY)


def is_transparent(value: Any) -> bool:
    """Whether it is nothing but what it holds, and cannot change."""
    if isinstance(value, types.BuiltinMethodType):  # such as `draw = rng.random`
        owner = value.__self__
        return owner is not None and not isinstance(owner, types.ModuleType)
    return isinstance(value, _TRANSPARENT)


def inside(value: Any) -> dict[str, Any]:
    """What something transparent holds, by the suffix of the path."""
    if isinstance(value, functools.partial):
        given = {f"({name}=)": item for name, item in value.keywords.items()}
        return {"": value.func, "()": value.args, **given}
    if isinstance(value, types.MethodType):
        return {".__self__": value.__self__, "": value.__func__}
    if isinstance(value, types.BuiltinMethodType):
        return {".__self__": value.__self__}
    if isinstance(value, frozenset):
        return {}
    names = getattr(value, "_fields", None)
    if names is not None and len(names) == len(value):
        return {f".{name}": item for name, item in zip(names, value, strict=True)}
    return {f"[{index}]": item for index, item in enumerate(value)}


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
            by_key = named and is_value(key)
            yield key_path(key, index) if by_key else f"[{index}]", item
        if not is_value(key):
            yield f" key {index}", key


def _is_one(value: Any) -> bool:
    """Whether an object is not equal to any other."""
    of_class: Any = type(value).__hash__
    return of_class is object.__hash__ and parts_of(value) is not None


def is_built(value: Any) -> bool:
    """Whether an object of Keras has what it makes when it is first used."""
    return not kinds.is_keras(type(value)) or bool(vars(value).get("built", True))


def _is_made_alike(value: Any) -> bool:
    """Whether what an object is made with is configuration, whoever makes it."""
    if isinstance(value, _CODE):
        return True
    callback = isinstance(value, keras.callbacks.Callback)
    return kinds.is_keras(type(value)) and not callback
