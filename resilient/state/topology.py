"""Describes how the layers of a functional model are connected, independent of names.

Two models with equal layers may still compute different things: a layer has other
inputs, or an operation another constant. Keras's config shows that, but by automatic
names that differ from process to process; here layers are identified by position.
"""

from typing import Any

from resilient.serialization import JSON
from resilient.serialization.schema import strict


def topology(config: JSON, name: str = "") -> JSON:
    """The inputs of each layer, from a model's ``get_config()``.

    Args:
        config: Of a functional model; others have no facts.
        name: Prefix of the names of its layers, if it is inside another model.

    Returns:
        A fact for each layer, also of models inside, and for the outputs.
    """
    places, found = _places(config), JSON()
    for place, layer in enumerate(_layers(config)):
        own = f"{name}layer {place} ({layer.get('class_name')})"
        if layer.get("inbound_nodes"):
            found[f"inputs of {own}"] = _renamed(layer["inbound_nodes"], places)
        inner = layer.get("config")
        if isinstance(inner, dict) and "layers" in inner:
            found |= topology(inner, f"{own} ")
    for key in ("input_layers", "output_layers"):
        if key in config:
            what = key.replace("_layers", "s")
            found[f"inputs of {name}{what}"] = _placed(config[key], places)
    return found


def _layers(config: JSON) -> list[JSON]:
    return [x for x in config.get("layers", ()) if isinstance(x, dict)]


def _places(config: JSON) -> dict[Any, int]:
    return {layer.get("name"): place for place, layer in enumerate(_layers(config))}


def _placed(value: Any, places: dict[Any, int]) -> Any:
    if isinstance(value, dict):
        return {key: _placed(item, places) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_placed(item, places) for item in value]
    return places.get(value) if isinstance(value, str) else value


def _renamed(value: Any, places: dict[Any, int]) -> Any:
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        name, *where = value["config"]["keras_history"]
        return ["layer", places.get(name), *where]
    if isinstance(value, dict):
        return {key: _renamed(item, places) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(item, places) for item in value]
    if isinstance(value, float):
        return strict(value)
    # Other strings may contain addresses or automatic names.
    return value if isinstance(value, (bool, int)) else None
