"""All that is known of what a graph computes: dataflow, patterns, labels. Linear in the graph."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.ir.graph import Graph
from tmmu.passes.semantics.attentions import find_attentions
from tmmu.passes.semantics.dataflow import Dataflow, dataflow_of
from tmmu.passes.semantics.labels import Labels, find_decoder, joins_modalities, label_ops
from tmmu.passes.semantics.patterns import Patterns, find_patterns
from tmmu.passes.semantics.streams import find_streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What was found of a graph; columns are per op of the graph."""

    flow: Dataflow
    patterns: Patterns
    labels: Labels


def analyze(graph: Graph, order: Sequence[int] | None = None, causal: frozenset[int] = frozenset()) -> Analysis:
    """The analysis of the ops of ``order`` (``None``: all, as they stand).

    ``causal`` are ops that were told by a flag to attend to earlier positions alone, which a graph does not hold.
    """
    flow = dataflow_of(graph, order)
    attentions = find_attentions(flow)
    streams = find_streams(flow, attentions)
    joins = frozenset(op for op in flow.order if joins_modalities(flow, op, streams))
    decoder = find_decoder(flow, attentions, streams, causal)
    trains = any(stage != "forward" for stage in graph.ops.stage)
    return Analysis(
        flow=flow,
        patterns=find_patterns(flow, attentions, joins),
        labels=label_ops(flow, attentions, streams, decoder, trains=trains),
    )
