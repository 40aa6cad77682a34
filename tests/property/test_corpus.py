"""The corpus at its published sizes: captured, planned and judged, for inference and for a training step."""

import pytest

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.corpus import plan, ratio

DATA_DEPENDENT = {("DETR ResNet-50", "backward")}
"""Matching predictions to targets is control flow on data: it cannot be planned, and must say so."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["inference", "backward"])
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_every_architecture_is_captured_and_packs_to_the_bound(architecture: Architecture, mode: str) -> None:
    row = plan(architecture, mode, "cuda")
    if (architecture.name, mode) in DATA_DEPENDENT:
        assert "DataDependentOutputException" in row.reason
        return
    assert row.result is not None, row.reason
    assert ratio(row.result) <= 1.01
