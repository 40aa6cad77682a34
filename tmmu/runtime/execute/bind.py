"""Binding: a judged plan gets memory and weights, every view is made, every call compiled and tried once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from blake3 import blake3

from tmmu.errors import InvalidConfig, PlanMismatch
from tmmu.ir.graph import INPUT, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program
from tmmu.ir.windows import writers
from tmmu.judge.check import judge
from tmmu.runtime.execute.executor import BoundProgram, Executor, Reservation, outputs_of
from tmmu.runtime.execute.inputs import InputSpec, external_buffers, input_specs
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.sizing import SegmentSizes, device_of, require_free
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.memory.tensor_views import SegmentLayout, TensorViews, allocate_inputs, segment_layout, without_text
from tmmu.runtime.memory.usage import round_up
from tmmu.runtime.memory.zero import zero_tensor
from tmmu.runtime.steps.build import compile_step
from tmmu.runtime.steps.execution_stream import CUDA_SCRATCH, ExecutionStream, execution_stream_of
from tmmu.runtime.steps.validate import ValidationContext, validate_steps
from tmmu.runtime.weights.load import Weight, adopt_weights, check_weights, load_into, source_chunks
from tmmu.runtime.weights.sources import Source

OWN: Final = bytes(32)
"""The key of the weights in segments that are one executor's own: nothing else will ever be looked up there."""


def bind(  # noqa: PLR0913 - what is run, how, with what, and where
    program: Program,
    plan: Plan,
    *,
    token: bytes,
    weights: Mapping[str, Weight],
    device: torch.device | str = "cpu",
    segments: Segments | None = None,
    session: str = "main",
    replay: bool = True,
    scratch: int = CUDA_SCRATCH,
    adopt: bool = False,
    external: Mapping[str, torch.Tensor] | None = None,
) -> Executor:
    """An executor of ``program`` inside ``plan``, holding ``weights`` (by buffer name), and state from them or zero.

    A weight is a tensor, or a tensor of a safetensors file (``stored_tensors``), which is read straight into its place.

    Its memory is its own, of exactly the plan's size, or a part of ``segments``: the weights are shared with whoever
    loaded the same, the stack is used in turn, and the state is the arena of ``session``. Runs the program once on
    zeros, to see what each operator does; torch's generator is afterwards where it was. With ``replay`` a run is
    handed over as a whole, on a CPU to torch's own interpreter, on a GPU as CUDA graphs, in which operators may
    allocate ``scratch`` bytes; without, Python makes each call.
    With ``adopt`` parameters and constants stay where the caller has them, and his changes of them are seen; nothing
    is in the text segment. Inputs that are ``external``, by name, stay where the caller keeps them: they are read and
    changed there, and a call is not given them.
    Errors: ``PLAN_MISMATCH``, ``PLAN_UNSOUND``, ``INVALID_CONFIG``, ``SEGMENT_FULL``, ``DEVICE_MEMORY``,
    ``ALIGNMENT_VIOLATION``, ``UNSUPPORTED_OP``.
    """
    homes = adopt_weights(program.graph, weights, device_of(device)) if adopt else None
    bound = bind_program(
        program,
        plan,
        token=token,
        weights=weights,
        device=device,
        segments=segments,
        session=session,
        scratch=scratch,
        external=external,
        elsewhere=homes,
    )
    return Executor(bound, replay=replay)


def bind_program(  # noqa: PLR0913 - as above
    program: Program,
    plan: Plan,
    *,
    token: bytes,
    weights: Mapping[str, Weight],
    device: torch.device | str = "cpu",
    segments: Segments | None = None,
    session: str = "main",
    scratch: int = CUDA_SCRATCH,
    external: Mapping[str, torch.Tensor] | None = None,
    elsewhere: Mapping[int, tuple[Slab, int]] | None = None,
) -> BoundProgram:
    """What ``bind`` gives to an executor: for those that run it in another way.

    Where weights lie ``elsewhere``, by buffer at an offset of a slab, nothing else is in the text segment, and whoever
    says so sees to their bytes.
    """
    where = device_of(device)
    _match(program, plan, where)
    judge(program.graph, plan, token=token)
    lane = execution_stream_of(where, scratch)
    images = check_weights(program.graph, weights, skip=elsewhere or ())
    need = segment_layout(plan) if elsewhere is None else without_text(segment_layout(plan))
    alignment = max(plan.arenas.alignment)
    shared = segments is not None
    home = segments or _own_segments(need, alignment, where)
    if home.alignment % alignment:
        raise InvalidConfig(
            f"the plan is aligned to {alignment} bytes, and the segments to {home.alignment}",
            fix=f"make segments with alignment {alignment}",
        )
    kept = external_buffers(program.graph, external or {}, where)
    with home.exclusive, torch.inference_mode(mode=False), lane.activate():
        return _Binding(
            program, plan, home, need, images, session, lane, shared=shared, external=kept, elsewhere=elsewhere
        ).bound()


def _match(program: Program, plan: Plan, device: torch.device) -> None:
    graph = program.graph
    if plan.ir_hash != graph.ir_hash:
        raise PlanMismatch(
            f"the plan is for graph {plan.ir_hash.hex()[:16]}, not {graph.ir_hash.hex()[:16]}",
            fix=f"make the plan again with tmmu plan --target {graph.target}, of this model as it is",
        )
    if tuple(str(call.operator) for call in program.calls) != graph.ops.target:
        raise PlanMismatch("the calls are not those of the graph", fix="lower graph and calls together")
    if device.type != graph.target:
        raise PlanMismatch(
            f"the graph is for {graph.target}, not for {device}", fix=f"capture the model for {device.type}"
        )


def _own_segments(need: SegmentLayout, alignment: int, device: torch.device) -> Segments:
    require_free(sum(need.bytes.values()), device)
    sizes = SegmentSizes(**{name: round_up(size, alignment) for name, size in need.bytes.items()})
    return Segments(sizes, device, alignment=alignment)


class _Binding:
    """One binding under way, inside the segments' turn."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        program: Program,
        plan: Plan,
        segments: Segments,
        need: SegmentLayout,
        images: Mapping[int, Source],
        session: str,
        lane: ExecutionStream,
        *,
        shared: bool,
        external: Mapping[int, torch.Tensor],
        elsewhere: Mapping[int, tuple[Slab, int]] | None,
    ) -> None:
        self.program, self.plan, self.segments, self.need = program, plan, segments, need
        self.graph, self.images, self.session, self.shared = program.graph, images, session, shared
        self.external, self.lane, self.elsewhere = external, lane, elsewhere
        self.base: dict[str, int] = {}

    def bound(self) -> BoundProgram:
        """Everything is in place; what fails on the way gives back what it took."""
        stack, data, text = self.segments.stack, self.segments.data, self.segments.text
        mark = stack.mark()
        self.base["stack"] = stack.push(self.need.bytes["stack"])
        stack.reset(mark)
        self.base["data"] = data.reserve(self.session, self.need.bytes["data"])
        try:
            if self.need.bytes["data"]:
                data.bump(self.session, self.need.bytes["data"])
            key = self._key() if self.shared else OWN
            self.base["text"] = text.load(key, self.need.bytes["text"], self._write_text)
            try:
                return self._compiled(key)
            except BaseException:
                text.release(key)
                raise
        except BaseException:
            data.reclaim(self.session)
            raise

    def _rows(self, segment: str) -> list[tuple[int, int]]:
        """(buffer, offset in what the plan takes of the segment) of each placed buffer."""
        if segment == "text" and self.elsewhere is not None:
            return []
        rows, arenas = self.plan.buffers, self.plan.arenas
        return [
            (buffer, self.need.arena_start[arena] + offset)
            for buffer, arena, offset in zip(rows.id, rows.arena, rows.offset, strict=True)
            if arenas.segment[arena] == segment
        ]

    def _key(self) -> bytes:
        """32 bytes over all weights and where they lie."""
        content = blake3()
        for buffer, offset in self._rows("text"):
            content.update(offset.to_bytes(8, "little") + self.graph.buffers.bytes[buffer].to_bytes(8, "little"))
            if buffer in self.images:
                for _, part in source_chunks(self.images[buffer]):
                    content.update(part.numpy())  # type: ignore[arg-type]
        return content.digest()

    def _write_text(self, base: int) -> None:
        for buffer, offset in self._rows("text"):
            if buffer in self.images:
                source = self.images[buffer]
                load_into(source, self.segments.slabs["text"].bytes(base + offset, source.size))

    def _compiled(self, key: bytes) -> BoundProgram:
        graph, order = self.graph, self.plan.order
        places = self._places()
        scratch = self.lane.scratch_limit(self.need.bytes["stack"])
        unread = _unread(graph, order)
        make = partial(compile_step, scratch=scratch, unread=unread, buffer_start=places.buffer_start)
        steps = [make(self.program.calls[op], places.view) for op in order]
        inputs = self._inputs()
        self._clear(places)
        with self._unchanged(places):
            steps, unplanned = validate_steps(
                steps, ValidationContext(view=places.view, compile_call=make, may_fill=self._may_fill, stream=self.lane)
            )
        self._clear(places)
        writer = writers(graph)
        runs = set(order)
        changed = {graph.values.buffer[v] for v, op in enumerate(writer) if op in runs}
        return BoundProgram(
            graph=graph,
            plan=self.plan,
            views=places,
            inputs=inputs,
            written_inputs=frozenset(i for i, one in enumerate(inputs) if graph.values.buffer[one.value] in changed),
            outputs=outputs_of(graph, order, writer),
            steps=tuple(steps),
            unplanned_allocations=unplanned,
            segments=self.segments,
            stream=self.lane,
            reservation=Reservation(
                text_key=key,
                session=self.session,
                stack_offset=self.base["stack"],
                stack_bytes=self.need.bytes["stack"],
            ),
        )

    def _may_fill(self, tensor: torch.Tensor) -> bool:
        """Whether it is no weight and not the caller's: all else is cleared before the first run."""
        kept = [self.segments.slabs["text"].storage, *(one.untyped_storage() for one in self.external.values())]
        kept += [slab.storage for slab, _ in (self.elsewhere or {}).values()]
        return tensor.untyped_storage()._cdata not in {storage._cdata for storage in kept}

    def _inputs(self) -> tuple[InputSpec, ...]:
        """Those that a call is given."""
        home = self.graph.values.buffer
        found = input_specs(self.graph, self.segments.device)
        return tuple(one for one in found if home[one.value] not in self.external)

    @contextmanager
    def _unchanged(self, places: TensorViews) -> Iterator[None]:
        """What is the caller's has the same bytes afterwards."""
        written = {self.graph.values.buffer[value] for op in self.plan.order for value in self.graph.ops.writes[op]}
        kept = [(places.bytes(buffer), places.bytes(buffer).clone()) for buffer in self.external if buffer in written]
        try:
            yield
        finally:
            for place, before in kept:
                place.copy_(before)

    def _places(self) -> TensorViews:
        graph, segments = self.graph, self.segments
        homes = allocate_inputs(graph, segments.alignment, segments.device, external=self.external)
        homes.update((buffer, (Slab.over(tensor), 0)) for buffer, tensor in self.external.items())
        homes.update(self.elsewhere or {})
        for segment, slab in self.segments.slabs.items():
            homes.update((buffer, (slab, self.base[segment] + offset)) for buffer, offset in self._rows(segment))
        return TensorViews(self.graph, homes)

    def _clear(self, places: TensorViews) -> None:
        """Stack, state and inputs are zero, and state that has a value to start from has it."""
        for segment in ("stack", "data"):
            zero_tensor(self.segments.slabs[segment].bytes(self.base[segment], self.need.bytes[segment]))
        for buffer, role in enumerate(self.graph.buffers.role):
            if role == INPUT and buffer not in self.external:
                zero_tensor(places.bytes(buffer))
        for buffer, _ in self._rows("data"):
            if buffer in self.images:
                load_into(self.images[buffer], places.bytes(buffer))


def _unread(graph: Graph, order: Sequence[int]) -> frozenset[int]:
    """Values that no op reads or saves and no caller gets: all that lies on their buffers."""
    values, ops = graph.values, graph.ops
    read = {values.buffer[value] for op in order for value in (*ops.reads[op], *ops.saves[op])}
    read |= {values.buffer[value] for value in graph.outputs}
    kept = {buffer for buffer, role in enumerate(graph.buffers.role) if role in PERSISTENT_ROLES}
    return frozenset(v for v, buffer in enumerate(values.buffer) if buffer not in read and buffer not in kept)
