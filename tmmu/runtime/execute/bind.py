"""Binds a plan: its segments get memory, its weights are loaded, every call is compiled and validated.

Order: match and judge (nothing is taken before the plan is found sound, and a rewritten program to mean its base),
reserve, load, compile, validate, clear. State of a session lies in its arena of the data segment; state that every run
brings with it lies in a slab of the binding's own while steps are tried, and no arena is touched.
Invariants: views are made once, here, and code is bound to them; a binding that fails gives back all that it reserved;
afterwards stack, state and inputs are as at the start, the random state too, and what belongs to the caller (external
inputs, adopted weights) has the bytes that it had.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch

from tmmu.errors import InvalidConfig, PlanMismatch, RoutingAssumed, UnsupportedOp
from tmmu.ir.graph import INPUT, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.program import Program, ProgramBase, Switches, factor_text
from tmmu.ir.rewrite import PARTIAL_KINDS
from tmmu.ir.windows import writers
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import require_meaning
from tmmu.kernel_switches import under_switches
from tmmu.runtime.execute.bind_request import BindRequest, require_option
from tmmu.runtime.execute.executor import BoundProgram, CallerStorage, Executor, Reservation, outputs_of
from tmmu.runtime.execute.inputs import external_buffers, input_specs
from tmmu.runtime.execute.state_arguments import StateArguments, state_arguments
from tmmu.runtime.kernels.collectives import awaited_values, is_between_ranks, on_running_groups
from tmmu.runtime.memory.segments import Segments
from tmmu.runtime.memory.sizing import SegmentSizes, device_of, require_free
from tmmu.runtime.memory.slab import PACKED, Location, Slab
from tmmu.runtime.memory.tensor_views import (
    SegmentLayout,
    TensorViews,
    allocate_host,
    allocate_inputs,
    segment_layout,
    without_text,
)
from tmmu.runtime.memory.usage import round_up
from tmmu.runtime.memory.zero import zero_tensor
from tmmu.runtime.steps.build import CompiledStep, compile_step
from tmmu.runtime.steps.execution_stream import ExecutionStream, execution_stream_of
from tmmu.runtime.steps.part_trial import differing_parts
from tmmu.runtime.steps.unplanned import Unplanned
from tmmu.runtime.steps.validate import ValidationContext, validate_steps
from tmmu.runtime.weights.load import adopt_weights, check_weights, content_key, load_into
from tmmu.runtime.weights.sources import Source
from tmmu.torch_private import cpp_address

UNSHARED_KEY: Final = bytes(32)
"""The content key of all weights together in segments of one executor, where no other key is ever looked up."""


def bind(program: Program, plan: Plan, **options: Any) -> Executor:
    """An executor of ``program`` inside ``plan``; ``options`` are the other fields of ``BindRequest``.

    A weight is a tensor, or a tensor of a safetensors file (``stored_tensors``), which is read straight into its place;
    state that is not among the weights starts as zeros. Runs the program twice, to validate its steps.
    Errors: ``PLAN_MISMATCH``, ``PLAN_UNSOUND``, ``REWRITE_UNSOUND``, ``INVALID_CONFIG``, ``SEGMENT_FULL``,
    ``DEVICE_MEMORY``, ``ALIGNMENT_VIOLATION``, ``UNSUPPORTED_OP``, ``ROUTING_ASSUMED``.
    """
    if not isinstance(program, Program) or not isinstance(plan, Plan):
        names = f"a {type(program).__name__} and a {type(plan).__name__}"
        raise InvalidConfig(f"{names} are no program and plan", fix="bind what a compile gave: program, then plan")
    for name, value in options.items():
        require_option(name, value)
    return bind_executor(BindRequest(program=program, plan=plan, **options))


def bind_executor(request: BindRequest) -> Executor:
    """``bind`` for a request."""
    device = device_of(request.device)
    locations = adopt_weights(request.program.graph, request.weights, device) if request.adopt else None
    return Executor(bind_program(request, weight_locations=locations), replay=request.replay)


def _require_base(program: Program, base: ProgramBase, plan: Plan, device: torch.device) -> None:
    """The program means its base, and its parts have the bits of the whole on this device, unless it is only near.

    Of one whose ops were fused since, the graph before that: the pass has held the fused one against it.
    ``REWRITE_UNSOUND``; ``UNSUPPORTED_OP`` where a kernel adds in another order for a part.
    """
    near = frozenset(plan.fit.near) if plan.fit else frozenset[str]()
    require_meaning(base.graph, base.rewritten or program.graph, base.rewrite, near=near)
    if near or set(PARTIAL_KINDS).isdisjoint(base.rewrite.kind):
        return
    differing = differing_parts(Program(graph=base.graph, calls=base.calls), base.rewrite, device)
    for op in differing:
        raise UnsupportedOp(
            f"parts of op {op} {base.graph.ops.target[op]} have other bits than the whole on {device}",
            fix="plan it with --allow near, or without parts: tmmu fit --only takeover,order,updates,recompute",
        )


def _require_every_routing(program: Program) -> None:
    """``ROUTING_ASSUMED`` for a program that holds for one routing of tokens to experts alone."""
    for routing in program.routings:
        raise RoutingAssumed(
            f"the program is one for experts that get {routing.capacity} tokens, as a capacity factor of "
            f"{factor_text(routing.factor)} says: another router's choice is another program",
            fix="run the model as it is: such a plan says what it takes under that routing",
            where=routing.source,
        )


def bind_program(request: BindRequest, *, weight_locations: Mapping[int, Location] | None = None) -> BoundProgram:
    """What an executor runs, without one: for those that run it in another way.

    With ``weight_locations``, by buffer, the text segment is empty, and the caller has loaded the weights there.
    """
    _require_every_routing(request.program)
    request = replace(request, program=on_running_groups(request.program))
    program, plan, device = request.program, request.plan, device_of(request.device)
    _require_match(program, plan, device)
    _require_copyable(program.graph)
    judge(program.graph, plan, token=request.token)
    if program.base is not None:
        _require_base(program, program.base, plan, device)
    stream = execution_stream_of(device, request.scratch)
    sources = check_weights(program.graph, request.weights, skip=weight_locations or ())
    layout = segment_layout(plan) if weight_locations is None else without_text(segment_layout(plan))
    alignment = max(plan.arenas.alignment)
    segments = request.segments or _own_segments(layout, alignment, device)
    if segments.alignment % alignment:
        raise InvalidConfig(
            f"the plan is aligned to {alignment} bytes, and the segments to {segments.alignment}",
            fix=f"make segments with alignment {alignment}",
        )
    external = external_buffers(program.graph, request.external or {}, device)
    switches, target = most_common_switches(program), program.graph.target
    with (
        segments.exclusive,
        torch.inference_mode(mode=False),
        stream.activate(),
        under_switches(switches, target),  # read once no other run has set its own
    ):
        return _Binding(
            request=request,
            segments=segments,
            layout=layout,
            sources=sources,
            external=external,
            stream=stream,
            weight_locations=weight_locations,
        ).bind()


def most_common_switches(program: Program) -> Switches:
    """The kernel switches of most calls; of two with as many, those that came first."""
    counts = Counter(call.switches for call in program.calls)
    return max(counts, key=lambda switches: counts[switches]) if counts else ()


def _require_match(program: Program, plan: Plan, device: torch.device) -> None:
    graph = program.graph
    if plan.fit is not None and (program.base is None or plan.fit.rewrite != program.base.rewrite):
        raise PlanMismatch(
            "the plan is for a graph that was rewritten, and the program does not say from what",
            fix="bind what rewrite_program makes of the model's program and plan.fit.rewrite",
        )
    _require_fused_alike(program, plan)
    if plan.ir_hash != graph.ir_hash:
        raise PlanMismatch(
            f"the plan is for graph {plan.ir_hash.hex()[:16]}, not {graph.ir_hash.hex()[:16]}",
            fix=f"make the plan again with tmmu plan --device {graph.target}, or name its --mode, --optimizer, --fuse",
        )
    if tuple(str(call.operator) for call in program.calls) != graph.ops.target:
        raise PlanMismatch("the calls are not those of the graph", fix="lower graph and calls together")
    if plan.fit is not None and any(is_between_ranks(call.operator) for call in program.calls):
        raise UnsupportedOp(
            "calls between ranks come in one order on all of them, which a rewritten step of one rank may change",
            fix="run the plan of the step as it is",
        )
    if device.type != graph.target:
        raise PlanMismatch(
            f"the graph is for {graph.target}, not for {device}", fix=f"capture the model for {device.type}"
        )


def _require_fused_alike(program: Program, plan: Plan) -> None:
    """Where a plan is of a rewritten graph, ops of it are fused in both, or in none."""
    if plan.fit is None or program.base is None:
        return
    planned = None if plan.fit.fused is None else plan.fit.fused.rewritten_hash
    before = None if program.base.rewritten is None else program.base.rewritten.ir_hash
    if planned != before:
        which = (
            "ops of the plan are fused, and none of the program" if before is None else "the program's ops are fused"
        )
        raise PlanMismatch(
            f"{which if None in (planned, before) else 'other graphs were fused'}: the plan is for another graph",
            fix="fuse the program where its plan is fused: --fuse, with the groups that the plan keeps apart",
        )


def _require_copyable(graph: Graph) -> None:
    """``UNSUPPORTED_OP`` for a dtype that torch itself cannot copy, nor anybody who holds such a tensor."""
    packed = sorted({dtype for dtype in graph.values.dtype if getattr(torch, dtype) in PACKED})
    if packed:
        raise UnsupportedOp(
            f"torch cannot copy a tensor of {packed[0]}: a model of them is planned, and not run",
            fix="keep such weights as uint8, and view them where they are used",
            dtype=packed[0],
        )


def _own_segments(layout: SegmentLayout, alignment: int, device: torch.device) -> Segments:
    require_free(sum(layout.bytes.values()), device)
    sizes = SegmentSizes(**{name: round_up(size, alignment) for name, size in layout.bytes.items()})
    return Segments(sizes, device, alignment=alignment)


@dataclass(slots=True, kw_only=True)
class _Binding:
    """One binding under way, with exclusive access to the segments.

    ``base`` has the offset reserved in stack and data; ``text`` that of each weight, and ``text_keys`` its contents.
    """

    request: BindRequest
    segments: Segments
    layout: SegmentLayout
    sources: Mapping[int, Source]
    external: Mapping[int, torch.Tensor]
    stream: ExecutionStream
    weight_locations: Mapping[int, Location] | None
    base: dict[str, int] = field(default_factory=dict)
    text: dict[int, int] = field(default_factory=dict)
    text_keys: list[bytes] = field(default_factory=list)
    state_slab: Slab | None = None
    """Where state lies while steps are tried that take it as an argument."""

    def bind(self) -> BoundProgram:
        """Reserves, loads, compiles and validates; a failure gives back what was reserved."""
        stack = self.segments.stack
        # A run pushes its slab where the views are made now: at the top of a stack that is empty between runs.
        mark = stack.mark()
        self.base["stack"] = stack.push(self.layout.bytes["stack"])
        stack.reset(mark)
        with ExitStack() as undo:
            self._reserve_state(undo)
            self._load_text(undo)
            bound = self._compile()
            undo.pop_all()
            return bound

    def _reserve_state(self, undo: ExitStack) -> None:
        session, size, data = self.request.session, self.layout.bytes["data"], self.segments.data
        if session is None:
            self.base["data"] = 0
            self.state_slab = Slab(size, self.segments.alignment, self.segments.device)
            return
        self.base["data"] = data.reserve(session, size)
        undo.callback(data.reclaim, session)
        if size:
            data.bump(session, size)

    def _load_text(self, undo: ExitStack) -> None:
        """Weights of shared segments one by one, so that plans share those that are alike; else all at once."""
        text = self.segments.text
        rows = self._placed_buffers("text")
        if self.request.segments is None:
            base = text.load(UNSHARED_KEY, self.layout.bytes["text"], partial(self._write_weights, rows))
            self.text = {buffer: base + offset for buffer, offset in rows}
            self.text_keys.append(UNSHARED_KEY)
            undo.callback(text.release, UNSHARED_KEY)
            return
        for buffer, _ in rows:
            key, size = self._content_key(buffer), self.request.program.graph.buffers.bytes[buffer]
            self.text[buffer] = text.load(key, size, partial(self._write_weights, [(buffer, 0)]))
            self.text_keys.append(key)
            undo.callback(text.release, key)

    def _placed_buffers(self, segment: str) -> list[tuple[int, int]]:
        """(buffer, byte offset in what the plan takes of the segment) of each placed buffer."""
        if segment == "text" and self.weight_locations is not None:
            return []
        rows, arenas = self.request.plan.buffers, self.request.plan.arenas
        return [
            (buffer, self.layout.arena_start[arena] + offset)
            for buffer, arena, offset in zip(rows.id, rows.arena, rows.offset, strict=True)
            if arenas.segment[arena] == segment
        ]

    def _content_key(self, buffer: int) -> bytes:
        graph = self.request.program.graph
        known = self.request.weight_keys.get(graph.notes.buffers[buffer])
        return known or content_key(self.sources.get(buffer), graph.buffers.bytes[buffer])

    def _write_weights(self, rows: Sequence[tuple[int, int]], base: int) -> None:
        """Writes the weights that lie at these offsets from ``base``; one without a value is zeros."""
        slab, sizes = self.segments.slabs["text"], self.request.program.graph.buffers.bytes
        for buffer, offset in rows:
            target = slab.bytes(base + offset, sizes[buffer])
            if buffer in self.sources:
                load_into(self.sources[buffer], target)
            else:
                zero_tensor(target)

    def _compile(self) -> BoundProgram:
        program, plan, views = self.request.program, self.request.plan, self._make_views()
        graph = program.graph
        steps, variants, unplanned = self._validated_steps(views)
        self._clear(views)
        specs = input_specs(graph, self.segments.device)
        inputs = tuple(spec for spec in specs if graph.values.buffer[spec.value] not in self.external)
        producer, executed = writers(graph), set(plan.order)
        written = {graph.values.buffer[value] for value, op in enumerate(producer) if op in executed}
        return BoundProgram(
            graph=graph,
            plan=plan,
            views=views,
            inputs=inputs,
            written_inputs=frozenset(i for i, spec in enumerate(inputs) if graph.values.buffer[spec.value] in written),
            outputs=outputs_of(graph, plan.order, producer),
            steps=tuple(steps),
            variants=variants,
            unplanned_allocations=unplanned,
            segments=self.segments,
            stream=self.stream,
            switches=most_common_switches(program),
            reservation=Reservation(
                text_keys=tuple(self.text_keys),
                session=self.request.session,
                stack_offset=self.base["stack"],
                stack_bytes=self.layout.bytes["stack"],
            ),
            caller_storages=self._caller_storages(),
            state=self._state_arguments(steps),
        )

    def _state_arguments(self, steps: Sequence[CompiledStep]) -> StateArguments | None:
        """What takes the place of the state on which the steps were tried, whose memory goes back."""
        if self.state_slab is None:
            return None
        sizes = self.request.program.graph.buffers.bytes
        rows = [(buffer, offset, sizes[buffer]) for buffer, offset in self._placed_buffers("data")]
        arguments = state_arguments(steps, self.state_slab, rows)
        self.state_slab.storage.resize_(0)
        return arguments

    def _slab_of(self, segment: str) -> Slab:
        return self.state_slab if segment == "data" and self.state_slab else self.segments.slabs[segment]

    def _caller_storages(self) -> tuple[CallerStorage, ...]:
        """Of external inputs and adopted weights, as they are now."""
        names = self.request.program.graph.notes.buffers
        storages = {buffer: tensor.untyped_storage() for buffer, tensor in self.external.items()}
        if self.request.adopt:
            storages |= {buffer: slab.storage for buffer, (slab, _) in (self.weight_locations or {}).items()}
        return tuple(
            CallerStorage(name=names[buffer], storage=storage, pointer=storage.data_ptr(), bytes=storage.nbytes())
            for buffer, storage in storages.items()
        )

    def _validated_steps(
        self, views: TensorViews
    ) -> tuple[list[CompiledStep], tuple[Mapping[int, CompiledStep], ...], tuple[Unplanned, ...]]:
        """The steps, those of each variant by their position, and what operators allocate in the former."""
        program, order, stream = self.request.program, self.request.plan.order, self.stream
        compile_call = partial(
            compile_step,
            scratch=stream.scratch_limit(self.layout.bytes["stack"]),
            unread=_unread_values(program.graph, order),
            buffer_start=views.buffer_start,
            switches=most_common_switches(program),
            kernels=self.request.kernels,
            awaited=awaited_values(program),
        )
        context = ValidationContext(
            view=views.view,
            compile_call=compile_call,
            may_fill=self._may_fill,
            stream=stream,
            exact_strides=self.request.exact_strides,
        )
        steps = [compile_call(program.calls[op], views.view) for op in order]
        rows = [
            [(position, compile_call(variant[op], views.view)) for position, op in enumerate(order) if op in variant]
            for variant in self.request.variants
        ]
        self._clear(views)
        with self._external_restored(views):
            validated, unplanned = validate_steps(steps, context)
            others, _ = validate_steps([step for row in rows for _, step in row], context)
        remaining = iter(others)
        return validated, tuple({position: next(remaining) for position, _ in row} for row in rows), unplanned

    def _may_fill(self, tensor: torch.Tensor) -> bool:
        """Whether it is neither a weight nor the caller's; all else is cleared before the first run."""
        protected = [self.segments.slabs["text"].storage, *(t.untyped_storage() for t in self.external.values())]
        protected += [slab.storage for slab, _ in (self.weight_locations or {}).values()]
        return cpp_address(tensor.untyped_storage()) not in {cpp_address(storage) for storage in protected}

    @contextmanager
    def _external_restored(self, views: TensorViews) -> Iterator[None]:
        """External inputs that the program writes have the same bytes afterwards."""
        graph, order = self.request.program.graph, self.request.plan.order
        written = {graph.values.buffer[value] for op in order for value in graph.ops.writes[op]}
        saved = [(views.bytes(buffer), views.bytes(buffer).clone()) for buffer in self.external if buffer in written]
        try:
            yield
        finally:
            for tensor, before in saved:
                tensor.copy_(before)

    def _make_views(self) -> TensorViews:
        graph, segments = self.request.program.graph, self.segments
        locations = allocate_inputs(graph, segments.alignment, segments.device, external=self.external)
        locations.update((buffer, (Slab.over(tensor), 0)) for buffer, tensor in self.external.items())
        locations.update(self.weight_locations or {})
        locations.update(allocate_host(graph, segments.device))
        locations.update((buffer, (segments.slabs["text"], offset)) for buffer, offset in self.text.items())
        for segment in ("stack", "data"):
            slab, base = self._slab_of(segment), self.base[segment]
            locations.update((buffer, (slab, base + offset)) for buffer, offset in self._placed_buffers(segment))
        return TensorViews(graph, locations)

    def _clear(self, views: TensorViews) -> None:
        """Zeroes stack, state and inputs, and loads the state that has an initial value."""
        for segment in ("stack", "data"):
            zero_tensor(self._slab_of(segment).bytes(self.base[segment], self.layout.bytes[segment]))
        for buffer, role in enumerate(self.request.program.graph.buffers.role):
            if role == INPUT and buffer not in self.external:
                zero_tensor(views.bytes(buffer))
        for buffer, _ in self._placed_buffers("data"):
            if buffer in self.sources:
                load_into(self.sources[buffer], views.bytes(buffer))


def _unread_values(graph: Graph, order: Sequence[int]) -> frozenset[int]:
    """Values on buffers that no op of the order reads or saves, and that no caller gets."""
    values, ops = graph.values, graph.ops
    read = {values.buffer[value] for op in order for value in (*ops.reads[op], *ops.saves[op])}
    read |= {values.buffer[value] for value in graph.outputs}
    persistent = {buffer for buffer, role in enumerate(graph.buffers.role) if role in PERSISTENT_ROLES}
    return frozenset(v for v, buffer in enumerate(values.buffer) if buffer not in read and buffer not in persistent)
