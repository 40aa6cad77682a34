"""An exported program (``.pt2``): its graph is run once over fake tensors, its weights stay unread."""

import logging
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, OutputKind
from torch.export.pt2_archive.constants import WEIGHTS_DIR

from tmmu.errors import CaptureFailed, InvalidConfig
from tmmu.passes.capture.modules import ModuleStack
from tmmu.passes.capture.replace import replace_attribute
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.sources import display_name
from tmmu.passes.capture.targets.dtypes import convert_tensor, parse_dtype
from tmmu.passes.capture.targets.untrusted import require_harmless, without_pickles
from tmmu.passes.capture.workload import OwnedTensor, Workload
from tmmu.torch_private import (
    ARCHIVE_FILE_MAP,
    DisableTorchFunction,
    FakeTensorMode,
    archive_package,
    deserialize_scalar_type,
    disable_current_modes,
    tree_unflatten,
)

_ROLES = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "constant", InputKind.CONSTANT_TENSOR: "constant"}
_CONVERTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.USER_INPUT)
_WRITES_BACK = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def load_exported(request: CaptureRequest, path: Path, fake: FakeTensorMode) -> Workload:
    """The program of a ``.pt2`` file, with the inputs that it was exported for."""
    _refuse_options(request)
    exported = read_exported(path, trust=request.trust, weights=False)
    signature = exported.graph_signature
    tensors: list[tuple[str, Any]] = []
    owned: list[OwnedTensor] = []
    for spec, node in zip(signature.input_specs, _placeholders(exported), strict=True):
        value = _in_dtype(spec, _placeholder(spec, node, exported, fake), request)
        tensors.append((node.name, value))
        if spec.kind in _ROLES and isinstance(value, torch.Tensor):
            owned.append(OwnedTensor(role=_ROLES[spec.kind], name=spec.target or node.name, tensor=value))
    owned_ids = {id(entry.tensor) for entry in owned}
    inputs = {name: value for name, value in tensors if isinstance(value, torch.Tensor) and id(value) not in owned_ids}
    modules = ModuleStack()
    if request.dtype or request.autocast:
        _drop_dtype_assertions(exported.graph_module)
    run = _ExportedCall(exported.graph_module, signature, dict(tensors), modules)
    return Workload(name=path.stem, folder="", run=run, kwargs=inputs, owned=tuple(owned), modules=modules)


def eager_exported(request: CaptureRequest, path: Path) -> Workload:
    """The same on real tensors: torch's own module of the program, with its weights, and inputs of zeros."""
    _refuse_options(request)
    exported = read_exported(path, trust=request.trust, weights=True)
    module = exported.module()
    if request.dtype or request.autocast:
        _drop_dtype_assertions(module)
    tensors = dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))
    owned = list[OwnedTensor]()
    for spec in exported.graph_signature.input_specs:
        if spec.target in tensors:
            tensor = tensors[spec.target]
            tensor.data = _in_dtype(spec, tensor.data, request)
            owned.append(OwnedTensor(role=_ROLES[spec.kind], name=spec.target, tensor=tensor))
    args, kwargs = tree_unflatten(_user_inputs(exported, request), exported.call_spec.in_spec)
    return Workload(
        name=path.stem, folder="", run=module, module=module, args=tuple(args), kwargs=kwargs, owned=tuple(owned)
    )


def stored_tensors_of(request: CaptureRequest, path: Path) -> dict[str, torch.Tensor]:
    """Weights, buffers and constants in the file, by the names of a graph's buffers, in the request's dtype."""
    exported = read_exported(path, trust=request.trust, weights=True)
    stored = {**exported.state_dict, **{n: t for n, t in exported.constants.items() if isinstance(t, torch.Tensor)}}
    specs = {spec.target: spec for spec in exported.graph_signature.input_specs}
    return {name: _in_dtype(specs[name], value, request) if name in specs else value for name, value in stored.items()}


def _placeholders(exported: torch.export.ExportedProgram) -> list[fx.Node]:
    return [node for node in exported.graph_module.graph.nodes if node.op == "placeholder"]


def _refuse_options(request: CaptureRequest) -> None:
    if request.settings or request.inputs:
        raise InvalidConfig("an exported program has its inputs fixed", fix="drop --set and --input, or export again")


def _in_dtype(spec: Any, value: Any, request: CaptureRequest) -> Any:
    """A weight, a buffer or an input in the dtype that the request names; numbers inside of the program stay."""
    is_converted = request.dtype is not None and spec.kind in _CONVERTED and isinstance(value, torch.Tensor)
    return convert_tensor(value, parse_dtype(request.dtype or "")) if is_converted else value


def _drop_dtype_assertions(module: fx.GraphModule) -> None:
    """Take out what holds a program, converted or under autocast, to the dtypes that it was exported with."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()


def read_exported(path: Path, *, trust: bool, weights: bool) -> torch.export.ExportedProgram:
    """The program in a file, with its ``weights`` or with room for them; no code of the file runs without ``trust``."""
    if not path.is_file():
        raise InvalidConfig(f"no file {str(path)!r}", fix="check the path")
    if not _is_archive(path):
        raise InvalidConfig(f"{str(path)!r} is no exported program", fix="make it with torch.export.save")
    unread = nullcontext() if weights else _skip_weights()
    unpickled = nullcontext() if trust else without_pickles(path)
    with disable_current_modes(), unread, unpickled, _keep_reasons() as reasons:
        try:
            if not trust:
                require_harmless(path)
            return torch.export.load(path)
        except InvalidConfig:
            raise
        except Exception as error:
            reason = " ".join(next(iter(reasons), str(error)).split())[:200]
            raise InvalidConfig(
                f"{str(path)!r} cannot be read: {reason}", fix="export it again with this torch"
            ) from error


def _is_archive(path: Path) -> bool:
    """Whether a file ends as a zip archive does; one that says it is a part of several is none here."""
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # Python raises this for damage in the last bytes of a large archive
        return False


@contextmanager
def _keep_reasons() -> Iterator[list[str]]:
    """Block in which torch does not print what it fails at in an archive; the texts of those exceptions, in order."""
    reasons = list[str]()

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            reasons.append(str(record.exc_info[1]))
        return False

    logger = logging.getLogger(torch.export.__name__)
    logger.addFilter(keep)
    try:
        yield reasons
    finally:
        logger.removeFilter(keep)


def _user_inputs(exported: torch.export.ExportedProgram, request: CaptureRequest) -> list[Any]:
    """What its user gives, in order: zeros of each tensor's form, other values as they were exported."""
    specs = zip(exported.graph_signature.input_specs, _placeholders(exported), strict=True)
    return [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else _in_dtype(spec, _zeros_of(node), request)
        for spec, node in specs
        if spec.kind is InputKind.USER_INPUT
    ]


def _zeros_of(node: fx.Node) -> Any:
    example = _static_example(node)
    if not isinstance(example, torch.Tensor):
        return example
    return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype).zero_()


@contextmanager
def _skip_weights() -> Iterator[None]:
    """Block in which reading an archive reserves room for weights but leaves their bytes in the file."""
    read_tensors = getattr(archive_package, ARCHIVE_FILE_MAP)

    def reserve(reader: Any, config: Any, base_dir: str) -> dict[str, torch.Tensor]:
        if base_dir != WEIGHTS_DIR:
            return read_tensors(reader, config, base_dir)  # type: ignore[no-any-return]
        payloads = [p for p in config.config.values() if not p.use_pickle and p.tensor_meta is not None]
        return {p.path_name: _reserve(reader, base_dir + p.path_name, p.tensor_meta) for p in payloads}

    with replace_attribute(archive_package, ARCHIVE_FILE_MAP, reserve):
        yield


def _reserve(reader: Any, record: str, meta: Any) -> torch.Tensor:
    dtype = deserialize_scalar_type(meta.dtype)
    return torch.empty(_record_size(reader, record) // dtype.itemsize, dtype=dtype)


def _record_size(reader: Any, record: str) -> int:
    """Bytes of a record. Torch 2.11 tells only by reading it; one weight at a time is kept then."""
    size = getattr(reader.archive_file, "get_record_size", None)
    return int(size(record)) if size is not None else len(reader.read_bytes(record))


def _placeholder(spec: Any, node: fx.Node, exported: torch.export.ExportedProgram, fake: FakeTensorMode) -> Any:
    """What stands for one input: a fake tensor, or the constant that was exported."""
    stored = exported.state_dict if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) else exported.constants
    if spec.kind is not InputKind.USER_INPUT and spec.target in stored:
        value = stored[spec.target]
        constant = spec.kind is InputKind.CONSTANT_TENSOR or not isinstance(value, torch.Tensor)
        return value if constant else _fake(value, fake)
    example = _static_example(node)
    if not isinstance(example, torch.Tensor):
        return example
    return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype)


def _static_example(node: fx.Node) -> Any:
    """What the graph says of an input; ``CAPTURE_FAILED`` for a tensor of a dynamic shape."""
    example = node.meta.get("val")
    sizes = (*example.shape, *example.stride()) if isinstance(example, torch.Tensor) else ()
    if any(not isinstance(size, int) for size in sizes):
        raise CaptureFailed(f"input {node.name!r} has a dynamic shape", fix="export it with static shapes")
    return example


def _fake(value: torch.Tensor, fake: FakeTensorMode) -> torch.Tensor:
    with disable_current_modes(), DisableTorchFunction():
        return fake.from_tensor(value)


class _ExportedCall:
    """The exported graph as a callable of its user inputs; what it mutates is written back where it lies."""

    def __init__(
        self, module: fx.GraphModule, signature: ExportGraphSignature, values: Mapping[str, Any], modules: ModuleStack
    ) -> None:
        self._runner = _Runner(module, modules)
        self._signature = signature
        self._values = values

    def __call__(self, **inputs: torch.Tensor) -> list[Any]:
        results = self._runner.run(*(inputs.get(name, value) for name, value in self._values.items()))
        targets = {spec.target: name for spec, name in zip(self._signature.input_specs, self._values, strict=True)}
        returned = []
        for spec, result in zip(self._signature.output_specs, results, strict=True):
            if spec.kind in _WRITES_BACK:
                name = targets.get(spec.target, spec.target)
                with torch.no_grad():  # it may be a parameter
                    self._values[name or ""].copy_(result)
            elif spec.kind is not OutputKind.TOKEN:
                returned.append(result)
        return returned


class _Runner(fx.Interpreter):
    """Runs node by node, so that each op gets the module path and source line that the export recorded."""

    def __init__(self, module: fx.GraphModule, modules: ModuleStack) -> None:
        super().__init__(module)
        self._modules = modules

    def run_node(self, n: fx.Node) -> Any:
        self._modules.path, self._modules.source = _path(n), _source(n)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The call; a number of the program is detached beside its place: a traced one counts as a view."""
        is_detached_in_place = target is torch.ops.aten.detach_.default
        return super().call_function(torch.ops.aten.detach.default if is_detached_in_place else target, args, kwargs)


def _path(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).removeprefix("L['self'].").removeprefix("L['self']") if stack else ""


def _source(node: fx.Node) -> str:
    frames = [f for f in _FRAME.findall(node.meta.get("stack_trace") or "") if "/torch/" not in f[0]]
    return f"{display_name(frames[-1][0], '')}:{frames[-1][1]}" if frames else ""
