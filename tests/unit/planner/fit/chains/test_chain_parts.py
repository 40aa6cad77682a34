"""Chains in parts: what they save, that they mean the graph and have its bits; where they end; what is not cut."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

import tmmu
from tests.runtime.harness import TOKEN, plan_of, same_bits
from tests.strategies import seeded
from tests.unit.judge.rewrite.rewriter import without_arguments
from tmmu.errors import InternalError, RewriteUnsound, TmmuError
from tmmu.ir.call_text import decode_call, encode_call
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import segment_bytes
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import PART, PLACED, SAME, Rewrite, identity_rewrite
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import check_rewrite, require_meaning, require_rows
from tmmu.judge.rewrite.cuts import CHANGING, TRIED
from tmmu.judge.rules import check_graph, require_legal
from tmmu.passes.lowering.read_calls import read_program
from tmmu.passes.lowering.rewrite_program import rewrite_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.chains.chain_parts import chain_parts, unit_ranges
from tmmu.planner.fit.curve import step_curve
from tmmu.planner.fit.forms import CHAINS
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.steps.part_trial import differing_parts

BATCH, WIDTH, LENGTH = 8, 16, 64


class Images(nn.Module):
    """Convolutions, norms of groups and of rows, pools, a mean and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.groups, self.batch, self.rows = nn.GroupNorm(4, WIDTH), nn.BatchNorm2d(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down, self.head = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.groups(self.stem(images)))
        x = F.max_pool2d(x, 2)
        x = torch.cat((x, self.batch(self.middle(x))), 2)
        x = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="nearest")
        y = self.rows(x.permute(0, 2, 3, 1))
        x = x + self.down(self.up(y).relu()).permute(0, 3, 1, 2)
        return self.head(x.mean((-1, -2)))


class Changing(nn.Module):
    """Blocks of a residual net, whose activations and sums change what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in "123")
        self.norms = nn.ModuleList(nn.BatchNorm2d(WIDTH) for _ in "123")
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.stem(images))
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            y = norm(convolution(x))
            y += x
            x = self.relu(y)
        return self.head(x.mean((-1, -2)))


class Rows(nn.Module):
    """Words, and wide layers between attention; the widest hold what is worth a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "up": nn.Linear(WIDTH, 512), "down": nn.Linear(512, WIDTH)})
            for _ in "12"
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            y = layer["norm"](x)
            x = x + F.scaled_dot_product_attention(y, y, y)
            x = x + layer["down"](layer["up"](layer["norm"](x)).relu())
        return x


INPUTS = {
    "images": lambda: {"images": torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(1))},
    "changing": lambda: {"images": torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(1))},
    "rows": lambda: {"ids": torch.randint(50, (1, 2 * LENGTH), generator=torch.Generator().manual_seed(1))},
    "rows of a batch": lambda: {"ids": torch.randint(50, (4, LENGTH), generator=torch.Generator().manual_seed(1))},
}
MODELS = {"images": Images, "changing": Changing, "rows": Rows, "rows of a batch": Rows}
LONG, SHORT, BY_ROWS = CHAINS


@cache
def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = MODELS[name]().eval()
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.data = torch.rand_like(buffer) + 0.5
    return module


@cache
def inference(name: str) -> Graph:
    """A graph without gradients, planned for a CPU."""
    return tmmu.plan(module_of(name), INPUTS[name](), device="cpu").graph


def in_parts(name: str, parts: int, which: dict[str, bool]) -> tuple[Graph, Rewrite]:
    base = inference(name)
    rewrite = chain_parts(base, parts, **which)
    graph = rebuild_graph(base, rewrite)
    require_legal(graph)
    require_meaning(base, graph, rewrite)
    return graph, rewrite


def stack_of(graph: Graph) -> int:
    return segment_bytes(plan_of(read_program(graph), mode="inference", preset="inference").arenas, "stack")


@pytest.mark.parametrize(
    ("name", "parts", "which", "share"),
    [
        ("images", 4, LONG, 0.45),
        ("images", 4, SHORT, 0.8),
        ("changing", 4, LONG, 0.3),
        ("rows", 4, BY_ROWS, 0.65),
        ("rows of a batch", 4, SHORT, 0.65),
    ],
)
def test_parts_take_less_and_have_the_bits_of_the_whole(
    name: str, parts: int, which: dict[str, bool], share: float
) -> None:
    base, (graph, rewrite) = inference(name), in_parts(name, parts, which)
    assert PART in rewrite.kind
    assert stack_of(graph) <= share * stack_of(base)
    program = rewrite_program(read_program(base), rewrite)
    plan = plan_of(program, mode="inference", preset="inference")
    judge(graph, plan, token=TOKEN)
    weights = dict(module_of(name).state_dict())
    executor = bind(program, plan, token=TOKEN, weights=weights, device="cpu")
    with torch.no_grad():
        expected = module_of(name)(**INPUTS[name]())
    assert same_bits(executor.run(INPUTS[name]())[0], expected)
    executor.close()


def test_chain_of_images_goes_on_to_the_head_which_has_few_rows() -> None:
    base, (_, rewrite) = inference("images"), in_parts("images", 4, LONG)
    whole = {base.ops.target[op] for op, kind in zip(rewrite.origin, rewrite.kind, strict=True) if kind == SAME}
    placed = {base.ops.target[op] for op, kind in zip(rewrite.origin, rewrite.kind, strict=True) if kind == PLACED}
    assert whole == {"aten.addmm.default"}
    assert placed == {"aten.mean.dim"}


def test_every_operator_of_images_is_cut() -> None:
    base, (_, rewrite) = inference("images"), in_parts("images", 4, LONG)
    cut = {base.ops.target[op] for op, kind in zip(rewrite.origin, rewrite.kind, strict=True) if kind != SAME}
    assert cut >= {
        "aten.convolution.default",
        "aten.native_group_norm.default",
        "aten.native_layer_norm.default",
        "aten.max_pool2d_with_indices.default",
        "aten.cat.default",
        "aten.upsample_nearest2d.default",
    }
    assert differing_parts(read_program(base), rewrite, torch.device("cpu")) == []
    assert cut & set(TRIED)


def test_parts_are_whole_units() -> None:
    assert [(each.low, each.high) for each in unit_ranges(8, 3)] == [(0, 2), (2, 5), (5, 8)]
    assert [(each.low, each.high) for each in unit_ranges(3, 8)] == [(0, 1), (1, 2), (2, 3)]
    assert all(each.low % 64 == 0 for each in unit_ranges(1000, 4))


@pytest.mark.parametrize("which", CHAINS)
def test_step_with_gradients_keeps_its_chains(which: dict[str, bool]) -> None:
    base = tmmu.plan(Images(), INPUTS["images"](), loss="sum", device="cpu").graph
    assert set(chain_parts(base, 4, **which).kind) == {SAME}


def test_lever_takes_the_form_that_fits() -> None:
    base = inference("images")
    arenas = default_arenas()
    without = step_curve(base, arenas, ["takeover"]).points[-1].peak
    assert step_curve(base, arenas, ["takeover", "parts"]).points[-1].peak <= 0.45 * without


def test_parts_that_differ_on_the_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    base, (_, rewrite) = inference("images"), in_parts("images", 4, LONG)
    program = rewrite_program(read_program(base), rewrite)
    plan = plan_of(program, mode="inference", preset="inference")
    monkeypatch.setattr("tmmu.runtime.steps.part_trial.has_same_bits", lambda *_: False)
    with pytest.raises(TmmuError, match="bits"):
        bind(program, plan, token=TOKEN, weights=dict(module_of("images").state_dict()), device="cpu")


def edited(rewrite: Rewrite, rows: list[tuple[OpId, str, tuple[int, ...]]]) -> Rewrite:
    """The rewrite with these rows."""
    origin, kind, part = (tuple(column) for column in zip(*rows, strict=True))
    return replace(rewrite, origin=origin, kind=kind, part=part)


def is_refused(base: Graph, rewrite: Rewrite) -> bool:
    try:
        graph = rebuild_graph(base, rewrite)
    except InternalError:
        return True
    return bool(check_graph(graph)) or bool(check_rewrite(base, graph, rewrite))


@pytest.mark.parametrize("name", ["images", "changing", "rows of a batch"])
def test_part_that_is_missing_moved_or_of_other_units_is_refused(name: str) -> None:
    base, (_, rewrite) = inference(name), in_parts(name, 4, SHORT if name == "rows of a batch" else LONG)
    rows = [*zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)]
    assert not is_refused(base, edited(rewrite, rows))
    for place, (origin, kind, part) in enumerate(rows):
        if kind == SAME:
            continue
        axis, low, high, *rest = part
        assert is_refused(base, edited(rewrite, [*rows[:place], *rows[place + 1 :]])), place
        for other in ((axis, low, high - 1, *rest), (axis + 1, 0, 1), (axis, low + 1, high, *rest)):
            assert is_refused(base, edited(rewrite, [*rows[:place], (origin, kind, other), *rows[place + 1 :]])), place
        if kind == PLACED and place + 1 < len(rows):
            last = max(index for index, row in enumerate(rows) if row[:2] == (origin, PLACED))
            swapped = [*rows]
            swapped[place], swapped[last] = rows[last], rows[place]
            assert last == place or is_refused(base, edited(rewrite, swapped)), place


def test_part_whose_norm_counts_other_images_is_refused() -> None:
    base, (graph, rewrite) = inference("images"), in_parts("images", 4, LONG)
    assert graph.calls is not None
    places = [op for op in graph.ops.ids if graph.ops.target[op] == "aten.native_group_norm.default"]
    texts = [decode_call(text) for text in graph.calls.texts]
    counts = {text.arguments[3] for op in places if (text := texts[graph.calls.call[op]]) is not None}
    assert counts == {BATCH // 4}
    wrong = tuple(
        encode_call(replace(text, arguments=(*text.arguments[:3], BATCH, *text.arguments[4:])))
        if text is not None and "group_norm" in text.operator
        else encoded
        for text, encoded in zip(texts, graph.calls.texts, strict=True)
    )
    faults = check_rewrite(base, replace(graph, calls=replace(graph.calls, texts=wrong)), rewrite)
    assert {fault.rule for fault in faults} == {"call"}


def changes_of(rewrite: Rewrite, base: Graph) -> list[int]:
    """The rows that change what they are given."""
    return [place for place, op in enumerate(rewrite.origin) if base.ops.target[op] in CHANGING]


def test_part_is_changed_as_it_was_made_or_not_at_all() -> None:
    base, (_, rewrite) = inference("changing"), in_parts("changing", 4, LONG)
    rows = [*zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)]
    assert len(changes_of(rewrite, base)) == 4 * 7
    for place in changes_of(rewrite, base):
        origin, kind, (axis, low, high) = rows[place]
        half = edited(rewrite, [*rows[:place], (origin, kind, (axis, low, low + 1)), *rows[place + 1 :]])
        faults = check_rewrite(base, rebuild_graph(base, half), half)
        assert f"op {place} changes more than a part of" in faults[0].what
        placed = (origin, PLACED, (axis, low, high))
        assert is_refused(base, edited(rewrite, [*rows[:place], placed, *rows[place + 1 :]]))
    maker = base.ops.target.index("aten.convolution.default")
    whole = [row for row in rows if row[0] != maker]
    assert is_refused(base, edited(rewrite, [(OpId(maker), SAME, ()), *whole]))


def test_part_that_says_that_it_changes_another_buffer_is_refused() -> None:
    base, (graph, rewrite) = inference("changing"), in_parts("changing", 4, LONG)
    place = changes_of(rewrite, base)[0]
    result, other = graph.ops.writes[place][0], len(graph.buffers)
    moved = replace(
        graph,
        values=replace(
            graph.values, buffer=tuple(other if v == result else b for v, b in enumerate(graph.values.buffer))
        ),
        buffers=replace(
            graph.buffers,
            bytes=(*graph.buffers.bytes, graph.buffers.bytes[graph.values.buffer[result]]),
            role=(*graph.buffers.role, "activation"),
        ),
    )
    faults = check_rewrite(base, moved, rewrite)
    assert f"op {place} changes more than a part of" in faults[0].what


def test_chain_that_ends_between_a_result_and_its_change_stays_whole() -> None:
    """What is changed in its place cannot be written in parts into the whole."""
    base = inference("changing")
    last = replace(base, outputs=(next(v for v in base.ops.writes[base.ops.target.index("aten.relu_.default")]),))
    rewrite = chain_parts(last, 4, **LONG)
    whole = {last.ops.target[op] for op, kind in zip(rewrite.origin, rewrite.kind, strict=True) if kind == SAME}
    assert "aten.relu_.default" in whole


def outcome_of(base: Graph, rewrite: Rewrite) -> str:
    """What becomes of rows from outside: the code, or the rule, that refuses them."""
    try:
        require_rows(base, rewrite)
    except RewriteUnsound:
        return "rows"
    graph = rebuild_graph(base, rewrite)
    faults = check_graph(graph) or check_rewrite(base, graph, rewrite)
    return faults[0].rule if faults else "sound"


def test_part_that_changes_the_whole_is_refused_by_the_judge() -> None:
    base = inference("changing")
    change = next(op for op in base.ops.ids if base.ops.target[op] in CHANGING)
    rows: list[tuple[OpId, str, tuple[int, ...]]] = [(op, SAME, ()) for op in base.ops.ids]
    rows.insert(change, (change, PART, (0, 0, 2)))
    rewrite = edited(identity_rewrite(base), rows)
    assert outcome_of(base, rewrite) == "operands"
    faults = check_rewrite(base, rebuild_graph(base, rewrite), rewrite)
    assert f"op {change} changes more than a part of" in faults[0].what


def scrambled(rewrite: Rewrite, pick: Callable[[int], int]) -> Rewrite:
    """One row more, fewer, elsewhere, or of another kind and part."""
    rows = [*zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)]
    place, other, act = pick(len(rows)), pick(len(rows)), pick(4)
    if act == 0:
        rows.insert(place, rows[other])
    elif act == 1:
        del rows[place]
    elif act == 2:
        rows.insert(other, rows.pop(place))
    else:
        low = pick(BATCH)
        part = ((), (0,), (0, low, low + 1 + pick(BATCH - low)), (1, 0, 4), (0, 0, 2, 1, 0, 1))[pick(5)]
        rows[place] = (rows[place][0], (PART, PLACED)[pick(2)], part)
    return edited(rewrite, rows)


@pytest.mark.parametrize("name", ["images", "changing"])
def test_rows_from_outside_are_refused_with_a_code_or_mean_the_base(name: str) -> None:
    pick, (_, rewrite) = seeded(3), in_parts(name, 4, LONG)
    base = inference(name)
    starts = [rewrite, identity_rewrite(base)]
    outcomes = Counter(outcome_of(base, scrambled(starts[pick(2)], pick)) for _ in range(80))
    assert outcomes["rows"] > 10
    assert outcomes["defined"] > 10
    assert sum(outcomes.values()) - outcomes["sound"] > 50


@pytest.mark.parametrize("name", ["images", "rows"])
def test_operators_that_are_called_without_their_arguments_are_not_cut(name: str) -> None:
    base, which = inference(name), LONG if name == "images" else BY_ROWS
    rewrite, refused = in_parts(name, 4, which)[1], set()
    assert base.calls is not None
    for row, _ in enumerate(base.calls.texts):
        forged = without_arguments(base, row)
        assert check_graph(forged) == ()
        chain_parts(forged, 4, **which)
        if outcome_of(forged, replace(rewrite, base_hash=forged.ir_hash)) == "rows":
            refused.add(base.ops.target[base.calls.call.index(row)])
    groups = {"aten.native_group_norm.default", "aten.mean.dim"} if name == "images" else set()
    assert refused >= {"aten.add.Tensor"} | groups
