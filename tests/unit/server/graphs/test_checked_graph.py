"""Each rule of a legal graph refuses a graph that is wrong in exactly that way, before anything is run."""

from collections.abc import Callable

import msgspec
import pytest

from tests.unit.server.graphs.recordings import ADD, RELU, Peer, floats, sum_graph, window
from tmmu.errors import InvalidRequest, QuotaExceeded, TmmuError, UnsupportedOp
from tmmu.wire.graph import (
    ArgumentList,
    GraphCall,
    NamedConstant,
    OperatorForm,
    RecordedGraph,
    TensorSlot,
    form_hash,
)

Change = Callable[[RecordedGraph], RecordedGraph]


def changed(graph: RecordedGraph, **fields: object) -> RecordedGraph:
    values = {name: getattr(graph, name) for name in graph.__struct_fields__}
    return RecordedGraph(**(values | fields))


def with_window(position: int, *place: object) -> Change:
    def change(graph: RecordedGraph) -> RecordedGraph:
        windows = list(graph.windows)
        windows[position] = window(*place)
        return changed(graph, windows=tuple(windows))

    return change


def with_calls(*calls: GraphCall) -> Change:
    return lambda graph: changed(graph, calls=calls)


BREAKS: dict[str, tuple[Change, type[TmmuError], str]] = {
    "a window behind its content": (with_window(0, 0, 1, (4,), (1,), "float32"), InvalidRequest, "ends behind"),
    "a window of long strides": (with_window(0, 0, 0, (4,), (2,), "float32"), InvalidRequest, "ends behind"),
    "strides of another number": (with_window(0, 0, 0, (4,), (), "float32"), InvalidRequest, "not as many"),
    "a dtype that is none": (with_window(0, 0, 0, (4,), (1,), "storage"), InvalidRequest, "no dtype"),
    "a quantized dtype": (with_window(0, 0, 0, (4,), (1,), "qint8"), InvalidRequest, "no dtype"),
    "more elements than a limit": (with_window(0, 0, 0, (1 << 40,), (0,), "float32"), QuotaExceeded, "elements"),
    "a content that is not there": (with_window(0, 9, 0, (4,), (1,), "float32"), InvalidRequest, "no content 9"),
    "another shape of a result": (with_window(2, 2, 0, (2, 2), (2, 1), "float32"), InvalidRequest, "makes"),
    "another dtype of a result": (with_window(2, 2, 0, (4,), (1,), "int32"), InvalidRequest, "makes"),
    "more bytes of a result": (lambda graph: changed(graph, results=(64, 16)), InvalidRequest, "makes"),
    "fewer bytes of a result": (lambda graph: changed(graph, results=(8, 16)), InvalidRequest, "ends behind"),
    "a result that is an input": (with_calls(GraphCall(0, (0, 1), (0,))), InvalidRequest, "no new content"),
    "a result twice": (
        with_calls(GraphCall(0, (0, 1), (2,)), GraphCall(0, (0, 1), (2,))),
        InvalidRequest,
        "no new content",
    ),
    "a result that nobody names": (with_calls(GraphCall(0, (0, 1), (-1,))), InvalidRequest, "other contents"),
    "two results of one": (with_calls(GraphCall(0, (0, 1), (2, 3))), InvalidRequest, "returns 1 tensors"),
    "a read before it is made": (
        with_calls(GraphCall(1, (2,), (3,)), GraphCall(0, (0, 1), (2,))),
        InvalidRequest,
        "not made yet",
    ),
    "a window that is not there": (with_calls(GraphCall(0, (0, 9), (2,))), InvalidRequest, "not there"),
    "a form that is not there": (with_calls(GraphCall(9, (0, 1), (2,))), InvalidRequest, "not there"),
    "a tensor too few": (with_calls(GraphCall(0, (0,), (2,))), InvalidRequest, "of 1 tensors"),
    "a content that nobody makes": (
        lambda graph: changed(graph, calls=graph.calls[:1]),
        InvalidRequest,
        "no call makes",
    ),
    "an input as output": (lambda graph: changed(graph, outputs=(0,)), InvalidRequest, "outputs are not"),
    "an output twice": (lambda graph: changed(graph, outputs=(3, 3)), InvalidRequest, "outputs are not"),
    "shapes that do not fit": (with_window(1, 1, 0, (3,), (1,), "float32"), InvalidRequest, "aten.add.Tensor"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_graph_that_is_wrong_in_one_way_is_refused(name: str) -> None:
    change, error, words = BREAKS[name]
    peer = Peer()
    inputs = [peer.upload(floats(1, 2, 3, 4)), peer.upload(floats(1, 1, 1, -9))]
    answer, (output,) = peer.run(sum_graph(), inputs, ADD, RELU)
    assert answer.failure is None
    assert peer.fetch(output).tolist() == [2, 3, 4, 0]
    usage = peer.service.usage_of("anybody")
    before = (usage.bytes, usage.contents)
    with pytest.raises(error, match=words):
        peer.run(change(sum_graph()), inputs)
    assert (usage.bytes, usage.contents) == before


SLOT = TensorSlot(0)
FORMS: dict[str, tuple[OperatorForm, type[TmmuError]]] = {
    "reads a file": (OperatorForm("aten.from_file.default", ("/etc/passwd",), ()), UnsupportedOp),
    "of another library": (OperatorForm("prims.add.default", (SLOT, SLOT), ()), UnsupportedOp),
    "no operator": (OperatorForm("aten.add.Nothing", (SLOT,), ()), UnsupportedOp),
    "attribute of the table": (OperatorForm("aten.add.__class__", (SLOT,), ()), UnsupportedOp),
    "another storage": (OperatorForm("aten.set_.source_Tensor", (SLOT, TensorSlot(1)), ()), UnsupportedOp),
    "memory of before": (OperatorForm("aten.empty.memory_format", (ArgumentList((4,)),), ()), UnsupportedOp),
    "another device": (
        OperatorForm("aten.zeros.default", (ArgumentList((4,)),), (("device", NamedConstant("device", "cuda")),)),
        InvalidRequest,
    ),
    "a layout": (
        OperatorForm("aten.zeros.default", (ArgumentList((4,)),), (("layout", NamedConstant("layout", "sparse_coo")),)),
        InvalidRequest,
    ),
    "a kind that is none": (OperatorForm("aten.relu.default", (NamedConstant("__dict__", "x"),), ()), InvalidRequest),
    "pinned": (OperatorForm("aten.zeros.default", (ArgumentList((4,)),), (("pin_memory", True),)), InvalidRequest),
    "too many arguments": (OperatorForm("aten.relu.default", (SLOT, 1, 2, 3), ()), InvalidRequest),
    "an argument twice": (OperatorForm("aten.relu.default", (SLOT,), (("self", 1),)), InvalidRequest),
    "a gap in its slots": (OperatorForm("aten.relu.default", (TensorSlot(1),), ()), InvalidRequest),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_not_allowed_is_refused(name: str) -> None:
    form, error = FORMS[name]
    with pytest.raises(error):
        Peer().send(forms=(form,))


RULES: dict[str, tuple[OperatorForm, list[tuple[int, ...]], str]] = {
    "channels of a batch norm": (
        OperatorForm(
            "aten.native_batch_norm.default", (*map(TensorSlot, range(5)), False, 0.1, 1e-5), ()
        ),
        [(2, 8, 4), (2,), (8,), (8,), (8,)],
        "float32",
    ),
    "sizes of a group norm": (
        OperatorForm("aten.native_group_norm.default", (SLOT, None, None, 2, 8, 4000, 2, 1e-5), ()),
        [(2, 8, 4)],
        "float32",
    ),
    "axes of a transform": (
        OperatorForm("aten._fft_c2c.default", (SLOT, ArgumentList((7,)), 0, True), ()),
        [(4,)],
        "complex64",
    ),
    "statistics of a layer norm": (
        OperatorForm(
            "aten.native_layer_norm_backward.default",
            (
                *(SLOT, TensorSlot(1), ArgumentList((4,)), TensorSlot(2), TensorSlot(3), None, None),
                ArgumentList((True, False, False)),
            ),
            (),
        ),
        [(8, 4), (8, 4), (2,), (8,)],
        "float32",
    ),
    "the shape of a convolution": (
        OperatorForm(
            "aten.convolution_backward.default",
            (
                *(SLOT, TensorSlot(1), TensorSlot(2), None, ArgumentList((1, 1)), ArgumentList((0, 0))),
                *(ArgumentList((1, 1)), False, ArgumentList((0, 0)), 1, ArgumentList((True, True, False))),
            ),
            (),
        ),
        [(1, 4, 2, 2), (1, 2, 5, 5), (4, 2, 3, 3)],
        "float32",
    ),
    "targets of a loss that is not summed": (
        OperatorForm(
            "aten.nll_loss_backward.default", (SLOT, *map(TensorSlot, (1, 2)), None, 0, -100, TensorSlot(3)), ()
        ),
        [(3,), (3, 4), (3,), ()],
        "float32",
    ),
    "counts of indices": (
        OperatorForm("aten.embedding_dense_backward.default", (SLOT, TensorSlot(1), 9, -1, True), ()),
        [(5, 4), (5,)],
        "float32",
    ),
    "sums of attention": (
        OperatorForm(
            "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
            (*map(TensorSlot, range(6)), 0.0, False),
            (),
        ),
        [*[(1, 2, 4, 8)] * 5, (1, 2, 3)],
        "float32",
    ),
    "values of attention": (
        OperatorForm(
            "aten._scaled_dot_product_flash_attention_for_cpu.default", (*map(TensorSlot, range(3)), 0.0, False), ()
        ),
        [(1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 3, 8)],
        "float32",
    ),
    "statistics of a batch norm's gradient": (
        OperatorForm(
            "aten.native_batch_norm_backward.default",
            (
                *(SLOT, TensorSlot(1), None, None, None, TensorSlot(2), TensorSlot(3), True, 1e-5),
                ArgumentList((True, False, False)),
            ),
            (),
        ),
        [(2, 8, 4), (2, 8, 4), (2,), (8,)],
        "float32",
    ),
    "the batch of a pooling": (
        OperatorForm("aten._adaptive_avg_pool2d_backward.default", (SLOT, TensorSlot(1)), ()),
        [(1, 1, 2, 2), (2, 8, 4, 4)],
        "float32",
    ),
    "modes of a sampled grid": (
        OperatorForm("aten.grid_sampler_3d.default", (SLOT, TensorSlot(1), 5, 0, False), ()),
        [(1, 1, 2, 2, 2), (1, 2, 2, 2, 3)],
        "float32",
    ),
    "scales of an interpolation": (
        OperatorForm("aten._upsample_bilinear2d_aa.default", (SLOT, ArgumentList((8, 8)), False, 1e-15, 1e-15), ()),
        [(1, 1, 4, 4)],
        "float32",
    ),
    "steps of a recurrence": (
        OperatorForm(
            "aten.gru.input",
            (SLOT, TensorSlot(1), ArgumentList((TensorSlot(2), TensorSlot(3))), False, 20, 0.0, False, False, False),
            (),
        ),
        [(1000, 1, 1), (1, 1, 1), (3, 1), (3, 1)],
        "float32",
    ),
    "weights of an LSTM": (
        OperatorForm(
            "aten.lstm.input",
            (
                SLOT,
                ArgumentList((TensorSlot(1), TensorSlot(2))),
                ArgumentList((TensorSlot(3), TensorSlot(4))),
                *(False, 1, 0.0, False, False, False),
            ),
            (),
        ),
        [(4, 1, 2), (1, 1, 8), (1, 1, 8), (2, 2), (2, 2)],
        "float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_sizes_that_a_kernel_would_trust_are_checked(name: str) -> None:
    form, shapes, dtype = RULES[name]
    peer = Peer()
    windows = []
    for number, shape in enumerate(shapes):
        stride, size = [], 1
        for length in reversed(shape):
            stride.append(size)
            size *= length
        windows.append(window(number, 0, shape, tuple(reversed(stride)), dtype))
    graph = RecordedGraph(
        inputs=(4096,) * len(shapes),
        results=(),
        windows=tuple(windows),
        forms=(form_hash(form),),
        calls=(GraphCall(0, tuple(range(len(shapes))), ()),),
        outputs=(),
    )
    with pytest.raises(InvalidRequest, match=r"aten\.\w+\.\w+: sizes do not fit"):
        peer.run(graph, [peer.upload(bytes(4096)) for _ in shapes], form)


def test_one_call_computes_no_more_than_a_limit() -> None:
    form = OperatorForm("aten.mm.default", (TensorSlot(0), TensorSlot(1)), ())
    size = 1 << 15
    graph = RecordedGraph(
        inputs=(4,),
        results=(size * size * 4,),
        windows=(window(0, 0, (size, size), (0, 0), "float32"), window(1, 0, (size, size), (size, 1), "float32")),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0, 0), (1,)),),
        outputs=(1,),
    )
    peer = Peer()
    with pytest.raises(QuotaExceeded, match="multiply-adds"):
        peer.run(graph, [peer.upload(bytes(4))], form)


@pytest.mark.parametrize(("dtype", "width", "times"), [("float32", 4, 1), ("bfloat16", 2, 8), ("int64", 8, 128)])
def test_products_count_by_what_their_kernels_take(dtype: str, width: int, times: int) -> None:
    form = OperatorForm("aten.mm.default", (TensorSlot(0), TensorSlot(1)), ())
    graph = RecordedGraph(
        inputs=(width,),
        results=(64 * 64 * width,),
        windows=(window(0, 0, (64, 64), (0, 0), dtype), window(1, 0, (64, 64), (64, 1), dtype)),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0, 0), (1,)),),
        outputs=(1,),
    )
    work = times * 64**3 + 3 * 64**2
    few, enough = Peer(multiply_adds=work - 1), Peer(multiply_adds=work)
    with pytest.raises(QuotaExceeded, match=f"of {work} multiply-adds"):
        few.run(graph, [few.upload(bytes(width))], form)
    answer, _ = enough.run(graph, [enough.upload(bytes(width))], form)
    assert answer.failure is None


def test_a_composite_calls_no_more_operators_than_a_limit() -> None:
    lists = (ArgumentList(()),) * 3
    form = OperatorForm("aten._trilinear.default", (*map(TensorSlot, range(3)), *lists, ArgumentList((0,)), 0), ())
    graph = RecordedGraph(
        inputs=(4,),
        results=(4,),
        windows=(window(0, 0, (1 << 20,), (0,), "float32"), window(1, 0, (1,), (1,), "float32")),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0, 0, 0), (1,)),),
        outputs=(1,),
    )
    peer = Peer()
    with pytest.raises(InvalidRequest, match="do not fit"):
        peer.run(graph, [peer.upload(bytes(4))], form)


@pytest.mark.parametrize(
    "form",
    [
        OperatorForm("aten.pixel_shuffle.default", (SLOT, 0), ()),
        OperatorForm("aten._fft_c2c.default", (SLOT, 1, 0, True), ()),
        OperatorForm("aten.native_group_norm.default", (None, SLOT, None, 2, 8, 4, 2, 1e-5), ()),
    ],
    ids=["division by zero", "a number as a list", "no tensor"],
)
def test_what_a_check_stumbles_over_is_refused(form: OperatorForm) -> None:
    graph = RecordedGraph(
        inputs=(64,),
        results=(),
        windows=(window(0, 0, (1, 4, 2, 2), (16, 4, 2, 1), "float32"),),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0,), ()),),
        outputs=(),
    )
    peer = Peer()
    with pytest.raises(InvalidRequest):
        peer.run(graph, [peer.upload(bytes(64))], form)


def test_what_a_kernel_writes_out_counts() -> None:
    form = OperatorForm("aten.sum.default", (TensorSlot(0),), ())
    graph = RecordedGraph(
        inputs=(4,),
        results=(4,),
        windows=(window(0, 0, (1 << 24,), (0,), "float32"), window(1, 0, (), (), "float32")),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0,), (1,)),),
        outputs=(1,),
    )
    peer = Peer(bytes=1 << 20)
    answer, _ = peer.run(graph, [peer.upload(bytes(4))], form)
    assert answer.failure is not None
    assert answer.failure.code == "QUOTA_EXCEEDED"


def test_bytes_that_are_no_booleans_are_not_read_as_such() -> None:
    form = OperatorForm("aten.logical_not.default", (TensorSlot(0),), ())
    flags = (0, (4,), (1,), "bool")
    graph = RecordedGraph(
        inputs=(4,),
        results=(4,),
        windows=(window(0, *flags), window(1, *flags)),
        forms=(form_hash(form),),
        calls=(GraphCall(0, (0,), (1,)),),
        outputs=(1,),
    )
    peer = Peer()
    answer, (output,) = peer.run(graph, [peer.upload(bytes([0, 1, 1, 0]))], form)
    assert peer.fetch(output, *flags).tolist() == [True, False, False, True]
    answer, _ = peer.run(graph, [peer.upload(bytes([0, 2, 1, 0]))], form)
    assert answer.failure is not None
    assert "booleans" in answer.failure.what
    fill = OperatorForm("aten.fill_.Scalar", (TensorSlot(0), 7), ())
    mixed = changed(
        graph,
        windows=(*graph.windows, window(0, 0, (4,), (1,), "uint8")),
        forms=(form_hash(fill), *graph.forms),
        calls=(GraphCall(0, (2,), (-1,)), GraphCall(1, (0,), (1,))),
    )
    with pytest.raises(InvalidRequest, match="booleans"):
        peer.run(mixed, [peer.upload(bytes(4))], fill, form)


def test_hashes_name_what_they_say() -> None:
    graph = sum_graph()
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(graph), type=RecordedGraph)
    assert decoded == graph
    assert len({form_hash(form) for form in (ADD, RELU, OperatorForm("aten.add.Tensor", (SLOT, 1), ()))}) == 3
    assert form_hash(OperatorForm("x", (1,), ())) != form_hash(OperatorForm("x", (True,), ()))
    assert form_hash(OperatorForm("x", (1,), ())) != form_hash(OperatorForm("x", (1.0,), ()))
