"""run.json says what kind of run it is of."""

import json

import pytest

from resilient import CorruptCheckpointError
from resilient.saving.record import SavedState
from resilient.saving.run_json import (
    ImportRun,
    LoopRun,
    VariablesRun,
    decoded,
    encoded,
)
from resilient.saving.snapshot import NOWHERE
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import SchemaError

pytestmark = pytest.mark.once

IMPORTED = ImportRun(source="/x", unknown=["the optimizer"])


def test_a_run_is_read_as_the_kind_that_it_was():
    read = decoded(json.loads(json.dumps(encoded(IMPORTED))))
    assert read == IMPORTED
    assert type(read) is ImportRun
    assert encoded(VariablesRun())["kind"] == "variables"


@pytest.mark.parametrize(
    "data", [{}, [], None, {"kind": "fit"}, {"kind": ["fit"]}, {"kind": "other"}]
)
def test_anything_else_is_refused(data):
    with pytest.raises(SchemaError):
        decoded(data)


def test_a_key_that_no_schema_has_is_left_out():
    assert decoded(encoded(IMPORTED) | {"callbacks": []}) == IMPORTED
    with pytest.raises(SchemaError, match="missing required field"):
        decoded({"kind": "loop", "stopped": False})
    assert "stopped" in LoopRun.__annotations__


def test_a_checkpoint_of_no_data_says_so():
    assert SavedState(VariablesRun(), NOWHERE, {}).positions() == Positions()


def test_a_position_that_no_schema_has_is_an_error_that_says_so():
    saved = SavedState(VariablesRun(), encode({"x": 3}, {}, "data"), {})
    with pytest.raises(
        CorruptCheckpointError, match="the position of the data"
    ) as found:
        saved.positions()
    assert "Received: Expected `object | null`, got `int` - at `$.x`" in str(
        found.value
    )
