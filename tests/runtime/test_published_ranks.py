"""``benchmarks/published_ranks.py``: a layer keeps what the published formula says, and all beside it is explained."""

from pathlib import Path

import pytest

from benchmarks import published_ranks

pytest.importorskip("torch.distributed")


@pytest.mark.slow
@pytest.mark.parametrize("sequences_cut", [False, True])
def test_layer_keeps_the_published_bytes_and_those_that_are_explained(sequences_cut: bool) -> None:
    options = {"ranks": 4, "sequences_cut": sequences_cut}
    formula = published_ranks.formula_bytes("tiny", **options)
    explained = published_ranks.explained_bytes("tiny", **options)
    assert published_ranks.kept_bytes("tiny", **options) == formula + explained
    assert 0 < explained < formula / 10


@pytest.mark.slow
def test_row_of_a_training_step_says_layout_and_figures(tmp_path: Path) -> None:
    row = published_ranks.Published(size="tiny", data=2, columns=2, sequences=1, recompute="full", gib=10.0)
    cells = [cell.strip() for cell in published_ranks.titan_row(row, tmp_path).strip("|").split("|")]
    assert cells[:5] == ["tiny", "2 x 2", "1", "full", ""]
    held, reserved, planned, published, share = map(float, cells[5:])
    assert planned <= held <= reserved
    assert published == 10.0
    assert share == pytest.approx(reserved / published, abs=0.01)
