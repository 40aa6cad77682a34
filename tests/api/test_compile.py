"""``tmmu.compile``: eager's bits in the model's own structure, inside the plan; no weight is ever stale."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone uses

import tmmu
from tests.api.test_plan import WEIGHTS, X, net
from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.runtime.memory.segments import Segments

Pair = namedtuple("Pair", "first second")
SCALE = torch.full((10,), 2.0)


@dataclass
class Output:
    """What a model may return."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None


class Structured(nn.Module):
    """Returns what ``build`` makes of its logits and its input."""

    def __init__(self, build: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.body = net()
        self.build = build

    def forward(self, x: torch.Tensor) -> Any:
        return self.build(self.body(x), x)


BUILDS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a tensor": lambda y, x: y,
    "a dict": lambda y, x: OrderedDict(y=y, rows=len(x), none=None, nested={"z": [y.exp(), "text"]}),
    "a named tuple": lambda y, x: Pair(y, y.sum()),
    "a dataclass": lambda y, x: Output(logits=y, hidden=(y.tanh(), y[1:3])),
    "a list": lambda y, x: [y, (y.relu(), 3.5)],
}


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else vars(value).values() if hasattr(value, "__dict__") else value
    return [leaf for item in items if isinstance(item, (torch.Tensor, dict, list, tuple)) for leaf in leaves(item)]


def eager(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def require_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    assert pairs
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", list(BUILDS))
def test_results_have_eagers_bits_and_structure(name: str) -> None:
    model = Structured(BUILDS[name]).eval()
    compiled = tmmu.compile(model, X)
    for x in (X, torch.randn(16, 32)):
        require_equal(compiled(x), eager(model, x))
    if name == "a dict":
        found = compiled(X)
        assert (found["rows"], found["none"], found["nested"]["z"][1]) == (16, None, "text")
        assert list(found) == ["y", "rows", "none", "nested"]


def test_calls_have_results_of_their_own() -> None:
    compiled = tmmu.compile(net().eval(), X)
    first = compiled(X)
    kept = first.clone()
    compiled(torch.randn(16, 32))
    assert torch.equal(first, kept)


def test_input_and_weight_that_are_returned_are_themselves() -> None:
    model = Structured(lambda y, x: (x, y, y.view_as(y), y)).eval()
    x, y, view, again = tmmu.compile(model, X)(X)
    assert x is X
    assert again is y
    assert view is not y
    assert view.data_ptr() == y.data_ptr()
    tied = Structured(lambda y, x: y).eval()
    tied.build = lambda y, x: (y, tied.body[0].weight)  # type: ignore[union-attr]

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.weight, self.weight

    own = Own().eval()
    assert tmmu.compile(own, torch.ones(4))(torch.ones(4))[1] is own.weight


def test_windows_on_inputs_and_weights_are_returned_as_eager_does() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x: torch.Tensor) -> Any:
            return x[:2], self.weight.t(), x.mul_(2).view(-1), [self.weight[0]]

    model, x = Windows().eval(), torch.rand(4, 4)
    compiled, twin = tmmu.compile(model, x), x.clone()
    require_equal(compiled(x), eager(model, twin))
    assert torch.equal(x, twin)


def test_threads_wait_for_each_other() -> None:
    model = net().eval()
    compiled = tmmu.compile(model, X)
    inputs = [torch.rand(16, 32) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(compiled, inputs))
    for x, one in zip(inputs, found, strict=True):
        require_equal(one, eager(model, x))


def test_it_runs_inside_its_plan_and_weights_are_not_copied() -> None:
    model = net().eval()
    compiled = tmmu.compile(model, X)
    assert compiled.module is model
    assert compiled.plan.total == tmmu.plan(model, X, device="cpu").total
    segments = compiled._executor.segments  # type: ignore[union-attr]
    assert isinstance(segments, Segments)
    assert segments.usage["text"].capacity == 0
    assert compiled.plan.graph.ir_hash == tmmu.plan(model, X, device="cpu").graph.ir_hash
    assert compiled.plan.total > WEIGHTS


def changes() -> dict[str, Callable[[nn.Module], Any]]:
    def step(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(X).sum().backward()
        optimizer.step()

    return {
        "optimizer step": step,
        "load_state_dict": lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
        "assigned state": lambda m: m.load_state_dict({k: v * 3 for k, v in m.state_dict().items()}, assign=True),
        "data": lambda model: setattr(model[0].weight, "data", torch.ones(64, 32)),  # type: ignore[index]
        "parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(64, 32))),  # type: ignore[index]
        "copy": lambda model: model[2].bias.detach().fill_(7),  # type: ignore[index]
    }


@pytest.mark.parametrize("name", list(changes()))
def test_change_of_weights_is_seen(name: str) -> None:
    model = net().eval()
    compiled = tmmu.compile(model, X)
    before = compiled(X)
    changes()[name](model)
    require_equal(compiled(X), eager(model, X))
    assert not torch.equal(compiled(X), before)


def test_weights_of_another_form_are_refused() -> None:
    model = net().eval()
    compiled = tmmu.compile(model, X)
    model.double()
    with pytest.raises(InvalidConfig, match="bytes"):
        compiled(X)
    model.float()
    require_equal(compiled(X), eager(model, X))


def test_other_modules_and_other_names_are_refused() -> None:
    model = net().eval()
    compiled = tmmu.compile(model, X)
    kept, model[1] = model[1], nn.ReLU()
    with pytest.raises(InvalidConfig, match="submodule came, went or was exchanged"):
        compiled(X)
    model[1] = kept
    del model[2].bias
    with pytest.raises(InvalidConfig, match="bias is gone"):
        compiled(X)


class Keeping(nn.Module):
    """Has buffers that it writes, plain tensors, a global and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()
        self.register_buffer("count", torch.zeros(1))
        self.plain = torch.ones(10)
        self.tables = {"big": torch.randn(70_000)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)  # type: ignore[operator, union-attr]
        y = self.body(x) * self.plain + SCALE + torch.arange(10) + torch.tensor([0.5])
        return y * self.count + self.tables["big"].mean()  # type: ignore[no-any-return]


def test_buffers_that_a_model_writes_stay_the_modules() -> None:
    model, twin = Keeping().eval(), Keeping().eval()
    twin.load_state_dict(model.state_dict())
    twin.tables = model.tables
    compiled = tmmu.compile(model, X)
    for _ in range(3):
        require_equal(compiled(X), eager(twin, X))
        assert float(model.count) == float(twin.count)  # type: ignore[arg-type]
    model.count.fill_(40)  # type: ignore[operator, union-attr]
    twin.count.fill_(40)  # type: ignore[operator, union-attr]
    require_equal(compiled(X), eager(twin, X))


def test_plain_and_global_tensors_are_seen_as_they_are() -> None:
    model, twin = Keeping().eval(), Keeping().eval()
    twin.load_state_dict(model.state_dict())
    twin.tables = model.tables
    compiled = tmmu.compile(model, X)
    try:
        for tensor in (model.plain, twin.plain, model.tables["big"], SCALE):
            tensor.add_(1)
        require_equal(compiled(X), eager(twin, X))
        model.plain = twin.plain = torch.full((10,), 9.0)
        require_equal(compiled(X), eager(twin, X))
    finally:
        SCALE.fill_(2)


def test_path_that_a_value_decides_is_for_that_value() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.tensor([1, 3]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: int(self.rows.max())] * 2  # type: ignore[operator]

    model = Cut().eval()
    compiled = tmmu.compile(model, X)
    assert compiled.plan.assumed == ("rows",)
    require_equal(compiled(X), eager(model, X))
    model.rows.fill_(2)  # type: ignore[operator, union-attr]
    with pytest.raises(InvalidConfig, match="rows has other values"):
        compiled(X)


class Two(nn.Module):
    """Adds in place, scaled by a number."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return a.mul_(2) + b * scale


def test_calls_that_are_not_planned_are_refused_and_nothing_runs() -> None:
    a, b = torch.ones(4, 8), torch.ones(4, 8)
    compiled = tmmu.compile(Two().eval(), {"a": a, "b": b, "scale": 2.0})
    for args, kwargs, text in (
        ((), {"a": a[:2], "b": b, "scale": 2.0}, r"input a has shape \(2, 8\)"),
        ((), {"a": a.double(), "b": b, "scale": 2.0}, "input a has dtype"),
        ((), {"a": torch.ones(8, 4).t(), "b": b, "scale": 2.0}, r"strides \(1, 4\)"),
        ((), {"a": a, "b": b, "scale": 3.0}, "planned: scale is 3.0, and was planned as 2.0"),
        ((), {"a": a, "b": a, "scale": 2.0}, "planned: b shares its tensor with another"),
        ((a, [b]), {"scale": 2.0}, "planned: b is a list, and was planned as a tensor"),
        ((a, b, b), {"scale": 2.0}, "planned: its arguments do not fit the parameters"),
    ):
        with pytest.raises(InvalidConfig, match=text):
            compiled(*args, **kwargs)
    whole = torch.ones(8, 8)
    with pytest.raises(InvalidConfig, match="share their storage"):
        compiled(a=whole[:4], b=whole[4:], scale=2.0)
    assert float(a.sum()) == 32
    compiled(a=a, b=b, scale=2.0)
    assert float(a.sum()) == 64, "an input that the model writes is the caller's"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"scales": [1.0, 3.0]}, r"scales\[1\] is 3.0, and was planned as 2.0"),
        ({"scales": [1.0]}, r"scales\[1\] is missing"),
        ({"options": {"up": True, "deep": 2}}, r"options\['deep'\] is new"),
        ({"options": {}}, r"options\['up'\] is missing"),
        ({"options": None}, "options is a value None, and was planned as a dict"),
        ({"other": 3}, "its arguments do not fit"),
    ],
)
def test_call_that_is_otherwise_is_told_in_which_argument(more: dict[str, Any], text: str) -> None:
    class Nested(nn.Module):
        def forward(self, x: torch.Tensor, scales: Any, options: Any) -> torch.Tensor:
            return x * float(scales[0])

    call = {"x": torch.ones(4), "scales": [1.0, 2.0], "options": {"up": True}}
    with pytest.raises(InvalidConfig, match=text):
        tmmu.compile(Nested().eval(), call)(**(call | more))


def test_names_and_order_of_arguments_do_not_matter() -> None:
    a, b = torch.rand(4, 8), torch.rand(4, 8)
    for inputs in ({"b": b, "a": a}, {"scale": 1.0, "b": b, "a": a}, (a, b)):
        compiled = tmmu.compile(Two().eval(), inputs)
        for args, kwargs in (((a, b), {}), ((), {"b": b, "a": a}), ((a,), {"scale": 1.0, "b": b})):
            kept, expected = a.clone(), eager(Two(), a.clone(), b)
            require_equal(compiled(*args, **kwargs), expected)
            a.copy_(kept)


def test_model_without_inputs_is_called_without() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.rand(4, 4))

        def forward(self) -> torch.Tensor:
            return self.rows.softmax(0)

    model = Table().eval()
    require_equal(tmmu.compile(model)(), eager(model))


def test_mode_is_never_another_than_planned() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5))
    with pytest.raises(InvalidConfig, match="in training mode"):
        tmmu.compile(model, X)
    compiled = tmmu.compile(model.eval(), X)
    model[1].train()
    with pytest.raises(InvalidConfig, match="in training mode"):
        compiled(X)
    model.eval()
    with torch.autocast("cpu"), pytest.raises(InvalidConfig, match="under autocast, and planned without"):
        compiled(X)
    mixed = tmmu.compile(model, X, autocast="bf16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        require_equal(mixed(X), eager(model, X))


def test_random_operators_draw_what_eager_draws() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x, 0.5) + torch.rand_like(x)

    model = Noisy().eval()
    compiled = tmmu.compile(model, X)
    torch.manual_seed(3)
    found = [compiled(X), compiled(X)]
    torch.manual_seed(3)
    for one in found:
        require_equal(one, eager(model, X))


def test_argument_that_the_model_refills_is_refused() -> None:
    class Caching(nn.Module):
        def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            cache[0] = torch.cat([cache[0], x])
            return cache[0].sum(0)

    with pytest.raises(UnsupportedOp, match="puts other tensors into an argument"):
        tmmu.compile(Caching().eval(), (X, [X.clone()]))


def test_closed_model_is_refused_and_gives_its_memory_back() -> None:
    with tmmu.compile(net().eval(), X) as compiled:
        compiled(X)
    compiled.close()
    with pytest.raises(InvalidConfig, match="is closed"):
        compiled(X)
    assert repr(compiled).startswith("<CompiledModel of Sequential: <MemoryPlan Sequential: inference on cpu")


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="function is no module"):
        tmmu.compile(lambda x: x, X)  # type: ignore[arg-type]


@pytest.mark.slow
def test_transformers_model_returns_its_own_output() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 64, (2, 16))
    compiled = tmmu.compile(model, {"input_ids": ids})
    found, expected = compiled(input_ids=ids), eager(model, input_ids=ids)
    assert type(found) is type(expected)
    assert list(found) == list(expected)
    assert torch.equal(found.logits, expected.logits)
    caches = [(layer.keys, layer.values) for layer in found.past_key_values.layers]
    for pair, layer in zip(caches, expected.past_key_values.layers, strict=True):
        assert torch.equal(pair[0], layer.keys)
        assert torch.equal(pair[1], layer.values)
