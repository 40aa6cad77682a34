"""What a step reaches by name: the same names on two loads of one file, and nothing that a library keeps for itself."""

import functools
import sysconfig
import types
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tmmu.passes.capture.record.unknown_numbers import UnknownNumber
from tmmu.passes.capture.training.reach import Reach, numbers_in, reach_of

TABLE = torch.ones(3)


@dataclass(slots=True)
class Slotted:
    """Keeps a tensor in a slot."""

    value: torch.Tensor
    count: int = 2


class Reader:
    """Has a method that reads a global of its module."""

    def __init__(self) -> None:
        self.rows = deque([torch.zeros(1)])

    def read(self) -> torch.Tensor:
        """A global."""
        return TABLE


def names(**values: Any) -> list[str]:
    return list(reached(**values).tensors)


def reached(**values: Any) -> Reach:
    """What a step reaches that closes over a dict of these."""
    content = dict(values)

    def step() -> Any:
        return content

    return reach_of(step)


def test_weights_have_the_paths_of_their_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert names(model=model)[:4] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert "1.running_mean" in names(model=model)


def test_paths_in_several_modules_begin_with_their_names() -> None:
    found = names(actor=nn.Linear(1, 1), critic=nn.Linear(1, 1, bias=False))
    assert found == ["content.actor.weight", "content.actor.bias", "content.critic.weight"]


def test_gradients_and_state_are_called_by_their_weight() -> None:
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model.weight.sum().backward()
    optimizer.step()
    assert names(model=model, optimizer=optimizer) == [
        "weight",
        "grad.weight",
        "optimizer.step.weight",
        "optimizer.exp_avg.weight",
        "optimizer.exp_avg_sq.weight",
    ]


def test_what_objects_containers_and_partials_hold_is_reached() -> None:
    tensor = torch.zeros(1)
    found = reached(
        rows=deque([torch.zeros(1), (torch.zeros(1),)]),
        slotted=Slotted(torch.zeros(1)),
        call=functools.partial(torch.add, torch.zeros(1), alpha=3),
        twice=[tensor, tensor],
    )
    assert list(found.tensors) == [
        "content.rows.0",
        "content.rows.1.0",
        "content.slotted.value",
        "content.call.args.0",
        "content.twice.0",
    ]
    assert found.numbers.items() >= {("content.slotted.count", 2), ("content.call.keywords.alpha", 3)}


def test_globals_that_a_method_reads_are_reached() -> None:
    assert sorted(names(reader=Reader())) == ["TABLE", "content.reader.rows.0"]


def test_hook_of_a_module_is_a_way_to_what_it_closes_over() -> None:
    seen = {"mean": torch.zeros(1)}
    model = nn.Linear(1, 1, bias=False)
    model.register_forward_hook(lambda *_: seen.update(mean=torch.zeros(1)))
    assert [name for name in names(model=model) if name.endswith("seen.mean")]


def test_hook_of_a_gradient_is_a_way_to_what_it_closes_over() -> None:
    model, mean, last = nn.Linear(1, 1), torch.zeros(1), torch.zeros(1, 1)
    model.bias.register_hook(lambda grad: mean + grad)
    model.weight.register_post_accumulate_grad_hook(last.copy_)
    assert names(model=model)[2:] == ["content.model.bias.hooks.0.mean", "content.model.weight.hooks.0.self"]


def test_tensor_on_a_parameter_is_called_by_it() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.main_grad = torch.zeros(1, 1)
    assert names(model=model) == ["weight", "weight.main_grad"]


def test_two_tensors_of_one_name_are_told_apart() -> None:
    model = nn.Linear(1, 1, bias=False)
    weight = torch.zeros(1)

    def step() -> Any:
        return model, weight

    assert list(reach_of(step).tensors) == ["weight", "weight'"]


def test_storage_has_the_first_name_on_it() -> None:
    whole = torch.zeros(4)
    found = reached(whole=whole, half=whole[:2])
    assert list(found.tensors) == ["content.whole", "content.half"]
    assert list(found.storage_names().values()) == ["content.whole"]


def test_keys_that_are_objects_count_by_position() -> None:
    assert names(moments={object(): torch.zeros(1), id(names): torch.zeros(1)}) == [
        "content.moments.0",
        "content.moments.1",
    ]


def test_generators_are_reached_and_torchs_own_objects_are_not_entered() -> None:
    generator = torch.Generator()
    found = reached(
        generator=generator, compiled=torch.compile(nn.Linear(1, 1, bias=False), backend="eager"), dtype=torch.float32
    )
    assert found.generators == {"content.generator": generator}
    assert not [name for name in found.numbers if "dynamo" in name]
    assert len(found.tensors) == 1


def test_globals_of_an_installed_package_are_left_alone() -> None:
    def step() -> Any:
        return TABLE

    assert list(reach_of(step).tensors) == ["TABLE"]
    code = step.__code__.replace(co_filename=f"{sysconfig.get_path('purelib')}/package/step.py")
    assert not reach_of(types.FunctionType(code, globals())).tensors


class Touchy:
    """Raises for attributes that it lacks."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_objects_that_raise_and_dead_proxies_are_passed_over() -> None:
    touchy, owner = Touchy(), Reader()
    dead, rows = weakref.proxy(owner), torch.zeros(1)
    del owner

    def step() -> Any:
        return touchy, dead, [dead, touchy], rows

    assert list(reach_of(step).tensors) == ["rows"]


def test_numbers_of_long_containers_are_data() -> None:
    found = reached(tokens=[*range(5000), torch.zeros(1)], vocabulary={str(i): i for i in range(5000)}, few=[1])
    assert list(found.tensors) == ["content.tokens.5000"]
    assert found.numbers == {"content.few.0": 1}


def test_numbers_of_a_result_have_paths() -> None:
    result = {"loss": 0.5, "parts": [1, torch.zeros(1), "text"], "ok": True}
    assert numbers_in(result, "output") == {"output.loss": 0.5, "output.parts.0": 1, "output.ok": True}


def test_number_that_depends_on_tensors_is_none() -> None:
    assert numbers_in([UnknownNumber(), 1.0], "output") == {"output.1": 1.0}
