"""Finds the seed generators of a pipeline's shuffles.

A ``shuffle`` draws from a generator that the pipeline's graph refers to by name. A
shuffle over no data with that name draws from the same one: see ``seed_counts``.
"""

from typing import Any

import tensorflow as tf

from resilient.data.tf_data.graph import PipelineGraph, input_of
from resilient.data.tf_data.seed_counts import SeedCount

_RESHUFFLES = ("reshuffle_each_iteration", "rerandomize_each_iteration")


def count_draws(graph: PipelineGraph) -> list[SeedCount]:
    """The counts of the generators that outlast iterators."""
    return [SeedCount(_of_no_data(handle)) for _, handle in _generators(graph)]


def with_own_generators(graph: PipelineGraph) -> list[SeedCount]:
    """Give each shuffle a new generator with its seeds, which may have changed."""
    counts = []
    by_node = {id(seeded.node): seeded.seeds for seeded in graph.seeded}
    for node, handle in _generators(graph, all_of_them=True):
        handle.name = "none"  # then it creates its own
        if not _reshuffles(node):
            continue
        own = _of_no_data(handle, by_node[id(node)])
        ((_, made),) = _generators(PipelineGraph(own))
        handle.CopyFrom(made)
        counts.append(SeedCount(own))
    return counts


def _generators(graph: PipelineGraph, *, all_of_them: bool = False) -> list[Any]:
    """Each shuffle, and the name of its generator."""
    by_name = {node.name: node for node in graph.definition.node}
    found = []
    for node in graph.definition.node:
        source = by_name.get(input_of(node, "seed_generator"))
        if source is not None and (all_of_them or _reshuffles(node)):
            (handle,) = source.attr["value"].tensor.resource_handle_val
            found.append((node, handle))
    return found


def _reshuffles(node: Any) -> bool:
    return any(node.attr[name].b for name in _RESHUFFLES if name in node.attr)


def _of_no_data(handle: Any, seeds: list[int] | None = None) -> Any:
    """A shuffle over no data that uses a generator, or creates one of that name."""
    graph = PipelineGraph(tf.data.Dataset.range(0).shuffle(1, seed=1))
    ((_, own),) = _generators(graph)
    own.CopyFrom(handle)
    if seeds is not None:
        graph.seeded[0].seeds = seeds
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return graph.dataset().with_options(options)
