"""Dataclasses as JSON objects, and back.

A missing field without a default, an unknown field, or a value of another type is a
``SchemaError`` that names the field. A field of type ``Any`` is taken as it is.
"""

import dataclasses
import types
import typing
from typing import Any, Literal, TypeVar

from resilient.serialization import JSON

T = TypeVar("T")


class SchemaError(ValueError):
    """What was read does not match the class."""


def to_json(value: Any) -> JSON:
    """The fields of a dataclass; those that are dataclasses as objects as well."""
    return {
        field.name: to_json(item) if dataclasses.is_dataclass(item) else item
        for field in dataclasses.fields(value)
        for item in [getattr(value, field.name)]
    }


def from_json(cls: type[T], data: object, where: str = "") -> T:
    """The dataclass that ``to_json`` was given.

    Args:
        cls: The dataclass.
        data: What was read.
        where: Its name in errors.

    Raises:
        SchemaError: A field is missing, unknown, or of another type.
    """
    if not isinstance(data, dict):
        raise SchemaError(f"{where or cls.__name__} is not an object")
    hints = typing.get_type_hints(cls)
    if unknown := data.keys() - hints.keys():
        raise SchemaError(f"{where}{min(map(str, unknown))} is not known")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        optional = {field.default, field.default_factory} != {dataclasses.MISSING}
        if field.name not in data and not optional:
            raise SchemaError(f"{where}{field.name} is missing")
    return cls(
        **{name: _read(hints[name], x, f"{where}{name}") for name, x in data.items()}
    )


def _read(hint: Any, value: Any, where: str) -> Any:
    """A value, if it is of a type."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value, f"{where}.")
    if origin is types.UnionType:
        if value is None and type(None) in inside:
            return None
        (hint,) = (each for each in inside if each is not type(None))
        return _read(hint, value, where)
    if origin is Literal:
        good = value in inside
    elif hint is float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
    elif hint is int:
        good = isinstance(value, int) and not isinstance(value, bool)
    else:
        good = hint is Any or isinstance(value, origin or hint)
    if not good:
        raise SchemaError(f"{where} is a {type(value).__name__}, not {_name(hint)}")
    if origin is list:
        return [_read(inside[0], item, f"{where}[]") for item in value]
    if origin is dict:
        return {
            key: _read(inside[1], item, f"{where}.{key}") for key, item in value.items()
        }
    return value


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
