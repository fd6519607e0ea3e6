"""Makes epoch logs what one process would report.

A metric's variables hold its counts. The ``aggregation`` of each says how to merge the
counts of several ranks. Results are computed from the merged counts, and then each rank
gets its own counts back. Logs of single batches stay each rank's own.

Logs of a ``train_step`` that are not metrics of the model are numbers of the last
batch. Their average over the ranks is reported: right for a mean over rows, and a
warning says that it is not exact. Anything that is not a number is refused, and so are
metrics that keep counts outside their variables.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import torch
from torch import distributed

from resilient import keras_internals
from resilient.distributed.strategies.torch_dp.averages import tensor_of
from resilient.errors import NotSupportedError, WarnOnce

_MERGED = keras_internals.EPOCH_LOGS


class MergedLogs:
    """While entered, the model's epoch logs are those of all ranks.

    This covers ``fit`` and its validation. An evaluation by a callback, perhaps on one
    rank only, is left alone.

    Args:
        model: The model whose logs to merge.
        host: A group of all ranks that communicates through host memory.
    """

    def __init__(self, model: keras.Model, host: Any) -> None:
        self._model, self._host = model, host
        self._elsewhere = False
        self._warn = WarnOnce()

    def __enter__(self) -> None:
        own = vars(self._model)
        own[_MERGED] = self._merged(self._model._get_metrics_result_or_logs)
        own["evaluate"] = self._evaluate(self._model.evaluate)

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
            with _merged_variables(self._model):
                results = {k: _kept(value) for k, value in plain(logs).items()}
            self._require_equal(results)
            return results

        return merged

    def _averaged(self, logs: Any) -> Any:
        """The average over the ranks of numbers of the last batch."""
        if not isinstance(logs, Mapping) or not logs:
            return logs
        own = {name: _number(name, value) for name, value in logs.items()}
        everyones = self._gathered(own)
        if any(theirs != everyones[0] for theirs in everyones):
            self._warn(
                "logs that train_step returns, and that are not metrics of the model, "
                "are reported as the average over the processes",
                sorted(own),
            )
        return {
            name: sum(theirs[name] for theirs in everyones) / len(everyones)
            for name in own
        }

    def _require_equal(self, results: Mapping[str, Any]) -> None:
        # As text, so that NaN equals NaN.
        everyones = self._gathered({k: repr(_plain(v)) for k, v in results.items()})
        names = [n for n in results if len({each.get(n) for each in everyones}) > 1]
        if names:
            raise NotSupportedError(
                "This metric's counts cannot be merged across processes: it keeps "
                "some of them outside its variables.",
                received=f"{names[0]}: "
                f"{', '.join(str(each.get(names[0])) for each in everyones)}",
                hint="Keep everything that the metric counts in variables made by "
                "add_variable.",
            )

    def _gathered(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        everyones: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyones, dict(values), group=self._host)
        return everyones


@contextmanager
def _merged_variables(model: keras.Model) -> Iterator[None]:
    """Inside, the model's metrics hold what all ranks counted; then this rank's again.

    Raises:
        NotSupportedError: A variable does not say how to merge it.
    """
    variables = list(model.metrics_variables)
    tensors = [tensor_of(variable) for variable in variables]
    counts = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            for variable, tensor in zip(variables, tensors, strict=True):
                _merge(variable, tensor)
        yield
    finally:
        with torch.no_grad():
            for tensor, count in zip(tensors, counts, strict=True):
                tensor.copy_(count)


def _merge(variable: Any, tensor: torch.Tensor) -> None:
    how = variable.aggregation
    if how == "only_first_replica":
        distributed.broadcast(tensor, 0)
    elif (how == "sum" and tensor.dtype != torch.bool) or (
        how == "mean" and tensor.is_floating_point()
    ):
        distributed.all_reduce(tensor)
        if how == "mean":
            tensor /= distributed.get_world_size()
    else:
        raise NotSupportedError(
            "A metric's variable does not say how to merge its values from several "
            "processes.",
            received=f"{variable.path} ({tensor.dtype}) with aggregation={how!r}",
            hint='Create it with aggregation "sum", "mean" or "only_first_replica".',
        )


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotSupportedError(
            "Only numbers in the logs can be merged across processes.",
            received=f"{name}, of type {type(value).__name__}",
            hint="Return one number for each name from train_step.",
        ) from error


def _kept(value: Any) -> Any:
    """A copy of a result, unaffected by later changes of variables."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _plain(value: Any) -> Any:
    """The same numbers as Python types."""
    return value.tolist() if hasattr(value, "tolist") else float(value)
