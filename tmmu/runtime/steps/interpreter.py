"""Code as one TorchScript graph: torch's own interpreter makes a call in a third of the time that Python takes.

The graph has one node per call, in order, and a ``copy_`` per result to copy. Tensors are constants of the graph, but
for those that a run is given in their place, which are its arguments. Invariant: it runs as written. The graph
executor's optimizations are off while it runs, in this thread, since they would fold calls on constants (constant they
are not: steps write them) or fuse calls and change bits. Each node's schema is compared with the operator's, so that no
call resolves to another overload. Code that the graph cannot express is left to Python. Choice and measurements:
docs/decisions/runtime-interpreter.md.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from tmmu.runtime.kernels.code import Code, Instruction, Runnable, needs_grad_mode, unexpanded_index
from tmmu.runtime.kernels.kernel_calls import merge_kernel_calls, with_sequences
from tmmu.torch_private import (
    ScriptGraph,
    ScriptListType,
    function_from_graph,
    is_executor_optimizing,
    schema_of,
    script_int_type,
    script_tensor_type,
    set_executor_optimizing,
)

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
    """A TorchScript graph cannot express this instruction."""


def build_function(code: Code, arguments: Sequence[torch.Tensor] = ()) -> Runnable | None:
    """A callable that runs all of ``code`` in one call; ``None`` where a graph cannot express it.

    It takes a tensor in place of each of ``arguments``, which are told by their identity, in that order.
    """
    merged, sequences = merge_kernel_calls(code, arguments)
    writer = _write_graph(merged, arguments)
    if writer is None:
        return None
    return with_sequences(writer.build(), sequences) if sequences else writer.build()


def is_expressible(code: Code) -> bool:
    """Whether a graph can express the code."""
    return _write_graph(code) is not None


def _write_graph(code: Code, arguments: Sequence[torch.Tensor] = ()) -> "_GraphWriter | None":
    writer = _GraphWriter(arguments)
    try:
        for instr in code:
            writer.add(instr)
    except NotExpressible:
        return None
    return writer


def without_optimization(function: Runnable) -> Runnable:
    """The function with the graph executor's optimizations off in this thread; as they were afterwards."""

    def run(*arguments: torch.Tensor) -> None:
        before = is_executor_optimizing()
        set_executor_optimizing(False)
        try:
            function(*arguments)
        finally:
            set_executor_optimizing(before)

    return run


class _GraphWriter:
    """Writes one graph. A tensor constant is made once per tensor, which is kept alive with it.

    Constants are cheaper than arguments, and safe: unoptimized, a graph neither compares nor folds what they hold.
    """

    def __init__(self, arguments: Sequence[torch.Tensor] = ()) -> None:
        self.graph: Any = ScriptGraph()  # untyped in torch's stubs
        self._tensors: dict[int, tuple[torch.Tensor, Value]] = {}
        self._constants: dict[tuple[type, Any], Value] = {}
        for tensor in arguments:
            value = self.graph.addInput()
            value.setType(script_tensor_type())
            self._tensors[id(tensor)] = tensor, value

    def add(self, instr: Instruction) -> None:
        """Adds a call and the copies of its results."""
        schema = schema_of(instr.operator)
        if needs_grad_mode(instr) or instr.switches is not None:
            raise NotExpressible("a switch of this thread")
        arguments = zip(instr.args, schema.arguments, strict=True)
        inputs = [self._argument(value, argument.real_type) for value, argument in arguments]
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
        """One function of everything added."""
        self.graph.registerOutput(self.graph.insertConstant(None))
        function: Runnable = function_from_graph("planned", self.graph)
        return without_optimization(function)

    def _copies(self, outputs: Sequence[Value], into: Sequence[torch.Tensor | None]) -> None:
        if len(outputs) != len(into) or any(str(output.type()) != "Tensor" for output in outputs):
            raise NotExpressible("a result that is not one tensor")
        for output, place in zip(outputs, into, strict=True):
            if place is not None:
                if unexpanded_index(place):
                    raise NotExpressible("an expanded result")
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
        if not isinstance(value, (list, tuple)):  # one number stands for a list in some schemas
            raise NotExpressible(type(value).__name__)
        if value and all(type(item) is int for item in value):
            return self._constant(list(value))
        node = self.graph.create("prim::ListConstruct", [self._argument(item, element) for item in value], 1)
        list_type = ScriptListType(script_int_type()) if element.kind() == "SymIntType" else kind
        node.output().setType(list_type)
        self.graph.insertNode(node)
        return node.output()

    def _tensor(self, tensor: torch.Tensor) -> Value:
        entry = self._tensors.get(id(tensor))
        if entry is None:
            value = self.graph.insertConstant(tensor.detach())
            value.setType(script_tensor_type())  # of any shape, as operators' schemas have it
            entry = self._tensors[id(tensor)] = tensor, value
        return entry[1]

    def _constant(self, value: Any) -> Value:
        key = (type(value), str(value))  # with the type: 1, 1.0 and True are equal
        constant = self._constants.get(key)
        if constant is None:
            constant = self._constants[key] = self.graph.insertConstant(value)
        return constant


def _signature(schema: str) -> str:
    """Name and overload of a schema, which identify the operator."""
    return schema.partition("(")[0]
