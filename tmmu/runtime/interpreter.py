"""Code handed as a whole to torch's own interpreter, which runs a call in a third of the time that Python takes.

The graph is run as it is written: nothing is fused, folded or moved, and what it gives has the bits of the calls made
one by one. Whatever the interpreter has no words for stays with Python.
"""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import torch

from tmmu.runtime.code import Code, Instruction, Run, moving_axes

Value = Any
"""``torch._C.Value``, which has no type of its own in torch's stubs."""

_FORMATS: Final = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
_SCALARS: Final = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)


class Unspeakable(Exception):
    """This instruction cannot be said in the interpreter's words."""


def interpreted(code: Code) -> Run | None:
    """What runs all of ``code`` in one call, or ``None`` where one of its instructions cannot be said."""
    written = _written(code)
    return None if written is None else written.finished()


def speakable(code: Code) -> bool:
    """Whether the interpreter has words for it."""
    return _written(code) is not None


def _written(code: Code) -> "_Writer | None":
    writer = _Writer()
    try:
        for one in code:
            writer.add(one)
    except Unspeakable:
        return None
    return writer


class _AsWritten:
    """While anyone is inside, torch's graph executor changes nothing of what it runs.

    The switch is the process's, and torch reads it when a graph is called: the first to enter turns it, the last to
    leave turns it back.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._before = True

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch._C._get_graph_executor_optimize()
                torch._C._set_graph_executor_optimize(False)  # noqa: FBT003 - C takes it by position
            self._inside += 1

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch._C._set_graph_executor_optimize(self._before)


AS_WRITTEN: Final = _AsWritten()


class _Writer:
    """Writes one graph. Tensors are its inputs: constants would be compared by content, and ours change."""

    def __init__(self) -> None:
        self.graph: Any = torch._C.Graph()  # torch's stubs know little of it
        self.tensors: list[torch.Tensor] = []
        self._inputs: dict[int, Value] = {}
        self._constants: dict[tuple[type, Any], Value] = {}

    def add(self, one: Instruction) -> None:
        """The call, and the copies of what it returns."""
        schema = one.operator._schema
        inputs = [self._argument(value, a.real_type) for value, a in zip(one.args, schema.arguments, strict=True)]
        node = self.graph.create(schema.name, inputs, len(schema.returns))
        outputs = list(node.outputs())
        for output, returned in zip(outputs, schema.returns, strict=True):
            output.setType(returned.real_type)
        self.graph.insertNode(node)
        if _signature(node.schema()) != _signature(str(schema)):
            raise Unspeakable(schema.name)
        if one.into:
            self._copies(outputs, one.into)

    def finished(self) -> Run:
        """One function over everything added."""
        self.graph.registerOutput(self.graph.insertConstant(None))
        function: Callable[..., object] = torch._C._create_function_from_graph("planned", self.graph)
        tensors = tuple(self.tensors)

        def run() -> None:
            with AS_WRITTEN:
                function(*tensors)

        return run

    def _copies(self, outputs: Sequence[Value], into: Sequence[torch.Tensor | None]) -> None:
        if len(outputs) != len(into) or any(str(output.type()) != "Tensor" for output in outputs):
            raise Unspeakable("a result that is not one tensor")
        for output, place in zip(outputs, into, strict=True):
            if place is not None:
                if moving_axes(place):
                    raise Unspeakable("a result that stands still")
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
        raise Unspeakable(type(value).__name__)

    def _list(self, value: Any, kind: Any) -> Value:
        element = kind.getElementType()
        items = value if isinstance(value, (list, tuple)) else None
        if items is None:  # one number stands for a list in some schemas
            raise Unspeakable(type(value).__name__)
        if items and all(type(item) is int for item in items):
            return self._constant(list(items))
        node = self.graph.create("prim::ListConstruct", [self._argument(item, element) for item in items], 1)
        whole = torch._C.ListType(torch._C.IntType.get()) if element.kind() == "SymIntType" else kind
        node.output().setType(whole)
        self.graph.insertNode(node)
        return node.output()

    def _tensor(self, tensor: torch.Tensor) -> Value:
        found = self._inputs.get(id(tensor))
        if found is None:
            found = self.graph.addInput()
            found.setType(torch._C.TensorType.get())
            self._inputs[id(tensor)] = found
            self.tensors.append(tensor)
        return found

    def _constant(self, value: Any) -> Value:
        key = (type(value), str(value))
        found = self._constants.get(key)
        if found is None:
            found = self.graph.insertConstant(value)
            self._constants[key] = found
        return found


def _signature(schema: str) -> str:
    """The name and overload, which say which operator it is."""
    return schema.partition("(")[0]
