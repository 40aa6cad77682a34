"""Code handed as a whole to torch's own interpreter, which runs a call in a third of the time that Python takes.

The graph is run as it is written: nothing is fused, folded or moved, and what it gives has the bits of the calls made
one by one. Whatever the interpreter has no words for stays with Python.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from tmmu.runtime.kernels.code import Code, Instruction, Runnable, unexpanded_index

Value = Any
"""``torch._C.Value``, which has no type of its own in torch's stubs."""

_FORMATS: Final = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
_SCALARS: Final = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)


class NotExpressible(Exception):
    """This instruction cannot be said in the interpreter's words."""


def build_function(code: Code) -> Runnable | None:
    """What runs all of ``code`` in one call, or ``None`` where one of its instructions cannot be said."""
    writer = _write_graph(code)
    return None if writer is None else writer.build()


def is_expressible(code: Code) -> bool:
    """Whether the interpreter has words for it."""
    return _write_graph(code) is not None


def _write_graph(code: Code) -> "_GraphWriter | None":
    writer = _GraphWriter()
    try:
        for instr in code:
            writer.add(instr)
    except NotExpressible:
        return None
    return writer


def without_optimization(function: Runnable) -> Runnable:
    """Runs it while torch's graph executor, in this thread, changes nothing of what it runs."""

    def run() -> None:
        before = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)  # noqa: FBT003 - C takes it by position
        try:
            function()
        finally:
            torch._C._set_graph_executor_optimize(before)

    return run


class _GraphWriter:
    """Writes one graph. Tensors are constants of it, which costs a call less than if they were handed over: nobody
    compares them by what they hold, or computes with it, while the graph is run as it is written.
    """

    def __init__(self) -> None:
        self.graph: Any = torch._C.Graph()  # torch's stubs know little of it
        self._tensors: dict[int, tuple[torch.Tensor, Value]] = {}
        self._constants: dict[tuple[type, Any], Value] = {}

    def add(self, instr: Instruction) -> None:
        """The call, and the copies of what it returns."""
        schema = instr.operator._schema
        inputs = [
            self._argument(value, argument.real_type)
            for value, argument in zip(instr.args, schema.arguments, strict=True)
        ]
        node = self.graph.create(schema.name, inputs, len(schema.returns))
        outputs = list(node.outputs())
        for output, result in zip(outputs, schema.returns, strict=True):
            output.setType(result.real_type)
        self.graph.insertNode(node)
        if _signature(node.schema()) != _signature(str(schema)):
            raise NotExpressible(schema.name)
        if instr.into:
            self._copies(outputs, instr.into)

    def build(self) -> Runnable:
        """One function over everything added."""
        self.graph.registerOutput(self.graph.insertConstant(None))
        function: Runnable = torch._C._create_function_from_graph("planned", self.graph)
        return without_optimization(function)

    def _copies(self, outputs: Sequence[Value], into: Sequence[torch.Tensor | None]) -> None:
        if len(outputs) != len(into) or any(str(output.type()) != "Tensor" for output in outputs):
            raise NotExpressible("a result that is not one tensor")
        for output, place in zip(outputs, into, strict=True):
            if place is not None:
                if unexpanded_index(place):
                    raise NotExpressible("a result that stands still")
                inputs = [self._tensor(place), output, self._constant(value=False)]
                self.graph.insertNode(self.graph.create("aten::copy_", inputs, 1))

    def _argument(self, value: Any, kind: Any) -> Value:
        name = kind.kind()
        if name == "OptionalType":
            return self._constant(None) if value is None else self._argument(value, kind.getElementType())
        if name == "ListType":
            return self._list(value, kind)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if name == "FloatType" and isinstance(value, int):
            return self._constant(float(value))
        if isinstance(value, torch.memory_format):
            return self._constant(_FORMATS[value])
        if value is None or isinstance(value, _SCALARS):
            return self._constant(value)
        raise NotExpressible(type(value).__name__)

    def _list(self, value: Any, kind: Any) -> Value:
        element = kind.getElementType()
        items = value if isinstance(value, (list, tuple)) else None
        if items is None:  # one number stands for a list in some schemas
            raise NotExpressible(type(value).__name__)
        if items and all(type(item) is int for item in items):
            return self._constant(list(items))
        node = self.graph.create("prim::ListConstruct", [self._argument(item, element) for item in items], 1)
        list_type = torch._C.ListType(torch._C.IntType.get()) if element.kind() == "SymIntType" else kind
        node.output().setType(list_type)
        self.graph.insertNode(node)
        return node.output()

    def _tensor(self, tensor: torch.Tensor) -> Value:
        entry = self._tensors.get(id(tensor))
        if entry is None:
            value = self.graph.insertConstant(tensor.detach())
            value.setType(torch._C.TensorType.get())  # of any shape
            entry = self._tensors[id(tensor)] = tensor, value
        return entry[1]

    def _constant(self, value: Any) -> Value:
        key = (type(value), str(value))
        constant = self._constants.get(key)
        if constant is None:
            constant = self.graph.insertConstant(value)
            self._constants[key] = constant
        return constant


def _signature(schema: str) -> str:
    """The name and overload, which say which operator it is."""
    return schema.partition("(")[0]
