"""Epoch logs as one process would report them.

A metric's variables are what it has counted so far. Each says by its ``aggregation``
how the counts of several ranks become one; of these the results are computed, and each
rank gets its own counts back. Logs of single batches stay the rank's own.

Logs of a ``train_step`` that are not the model's metrics are numbers of the last batch:
their average over the ranks is reported, which is right for a mean over rows and is
said to be inexact. What is no number is refused, and so are metrics that keep counts
outside of their variables.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import torch
from torch import distributed

from resilient import keras_internals
from resilient.distributed.strategies.torch_dp.agreement import RankAgreement
from resilient.distributed.strategies.torch_dp.averaging import tensor_of
from resilient.errors import NotSupportedError, WarnOnce

_MERGED = keras_internals.EPOCH_LOGS


class MergedLogs:
    """While entered, the model's epoch logs are those of all ranks.

    Those of ``fit`` and of its validation. An evaluation that a callback makes, perhaps
    on one rank only, is left alone.
    """

    def __init__(
        self, model: keras.Model, agreement: RankAgreement, group: Any = None
    ) -> None:
        """Prepare.

        Args:
            model: Whose logs are meant.
            agreement: For the results.
            group: Of processes, for the metrics' variables; the default one where none
                is given.
        """
        self._model, self._agreement, self._group = model, agreement, group
        self._elsewhere = False
        self._warn = WarnOnce()

    def __enter__(self) -> "MergedLogs":
        own = vars(self._model)
        own[_MERGED] = self._merged(self._model._get_metrics_result_or_logs)
        own["evaluate"] = self._evaluate(self._model.evaluate)
        return self

    def __exit__(self, *_: object) -> None:
        for name in (_MERGED, "evaluate"):
            vars(self._model).pop(name, None)

    def _evaluate(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            before, own = self._elsewhere, kwargs.get("_use_cached_eval_dataset")
            self._elsewhere = not own
            try:
                return plain(*args, **kwargs)
            finally:
                self._elsewhere = before

        return evaluate

    def _merged(self, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def merged(logs: Any) -> Any:
            if self._elsewhere:
                return plain(logs)
            own = plain(logs)
            if own is logs:
                return self._averaged(logs)
            with merged_variables(self._model, self._group):
                results = plain(logs)
                results = {k: _kept(value) for k, value in results.items()}
            self._require_equal(results)
            return results

        return merged

    def _averaged(self, logs: Any) -> Any:
        """Of numbers of the last batch, the average over the ranks."""
        if not isinstance(logs, Mapping) or not logs:
            return logs
        own = {name: _number(name, value) for name, value in logs.items()}
        everyones = self._gathered(own)
        if any(theirs != everyones[0] for theirs in everyones):
            self._warn(
                "logs that train_step returns, and that are no metrics of the model, "
                "are reported as the average over the processes",
                sorted(own),
            )
        return {
            name: sum(theirs[name] for theirs in everyones) / len(everyones)
            for name in own
        }

    def _require_equal(self, results: Mapping[str, Any]) -> None:
        everyones = self._gathered({k: _plain(v) for k, v in results.items()})
        texts = [{k: repr(v) for k, v in each.items()} for each in everyones]
        names = [name for name in texts[0] if len({t.get(name) for t in texts}) > 1]
        if names:
            raise NotSupportedError(
                "A metric cannot be put together from those of several processes: "
                "it keeps something outside of its variables.",
                received=f"{names[0]}: "
                f"{', '.join(str(t.get(names[0])) for t in texts)}",
                hint="Keep all that a metric counts in variables made by add_variable.",
            )

    def _gathered(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [json.loads(t) for t in self._agreement.gathered(json.dumps(values))]


@contextmanager
def merged_variables(model: keras.Model, group: Any = None) -> Iterator[None]:
    """The model's metrics hold what all ranks counted; then again this rank's own.

    Raises:
        NotSupportedError: A variable does not say how.
    """
    variables = list(model.metrics_variables)
    tensors = [tensor_of(variable) for variable in variables]
    counts = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for variable, tensor in zip(variables, tensors, strict=True):
                _merge(variable, tensor, group)
        yield
    finally:
        with torch.no_grad():
            for tensor, count in zip(tensors, counts, strict=True):
                tensor.copy_(count)


def _merge(variable: Any, tensor: torch.Tensor, group: Any) -> None:
    how = variable.aggregation
    if how == "only_first_replica":
        distributed.broadcast(tensor, group=group, group_src=0)
    elif (how == "sum" and tensor.dtype != torch.bool) or (
        how == "mean" and tensor.is_floating_point()
    ):
        total = tensor.detach().clone()
        distributed.all_reduce(total, group=group)
        if how == "mean":
            total = total / distributed.get_world_size(group)
        tensor.copy_(total)
    else:
        raise NotSupportedError(
            "A metric's variable does not say how those of several processes "
            "become one.",
            received=f"{variable.path} ({tensor.dtype}) with aggregation={how!r}",
            hint='Make it with aggregation "sum", "mean" or "only_first_replica".',
        )


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotSupportedError(
            "Only numbers can be put together from several processes' logs.",
            received=f"{name}, of type {type(value).__name__}",
            hint="Let train_step return one number for each name.",
        ) from error


def _kept(value: Any) -> Any:
    """A result that stays when the variables that it came from change."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _plain(value: Any) -> Any:
    """The same number, or numbers, as JSON has them."""
    return value.tolist() if hasattr(value, "tolist") else float(value)
