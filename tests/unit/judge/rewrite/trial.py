"""Every call of an operator with a row, made twice by torch on the same bits."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from tmmu.judge.rewrite.facts import EMPTY, LIST_OPERATORS, OPERATORS


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else plain


def same(first: Any, second: Any) -> bool:
    pairs = zip(tensors(first), tensors(second), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b)) for a, b in pairs)


def copied(tree: Any) -> Any:
    """Each tensor once; windows keep their strides."""
    known: dict[int, torch.Tensor] = {}

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return known.setdefault(id(leaf), leaf.detach().clone(memory_format=torch.preserve_format))

    return tree_map(copy, tree)


class Twice(TorchDispatchMode):
    """``tried`` counts calls by operator, ``faults`` are the rows that are wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: Counter[str] = Counter()
        self.faults: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if name in OPERATORS and all(t.layout is torch.strided for t in tensors((args, kwargs))):
            self.tried[name] += 1
            self._try(func, name, args, kwargs)
        return func(*args, **kwargs)

    def _try(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        state = torch.get_rng_state()
        before, first, second = copied((args, kwargs)), copied((args, kwargs)), copied((args, kwargs))
        results = func(*first[0], **first[1]), func(*second[0], **second[1])
        if not torch.equal(state, torch.get_rng_state()):
            self.faults.add(f"{name} draws")
        if name not in EMPTY and not (same(*results) and same(first, second)):
            self.faults.add(f"{name} has other bits")
        changes = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        if not changes and "batch_norm" not in name and not same(first, before):
            self.faults.add(f"{name} changes its arguments")
        if name in LIST_OPERATORS and not same(self._one_by_one(func, before), (results[0], first)):
            self.faults.add(f"{name} is not done entry by entry")

    @staticmethod
    def _one_by_one(func: Any, call: Any) -> Any:
        args, kwargs = copied(call)
        length = max(len(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, (list, tuple)))

        def part(index: int) -> Callable[[Any], Any]:
            return lambda arg: arg[index : index + 1] if isinstance(arg, (list, tuple)) and arg else arg

        results = []
        for index in range(length):
            take = part(index)
            results += func(*map(take, args), **{name: take(arg) for name, arg in kwargs.items()}) or ()
        return results or None, (args, kwargs)
