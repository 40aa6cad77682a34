"""Packing problems and graphs shaped like transformers, of any size."""

from dataclasses import dataclass, field

from tests.strategies import Builder, seeded
from tmmu.ir.graph import Buffers, Graph, Notes, OpNotes, Ops, Values, blank_notes
from tmmu.ir.problem import Problem


@dataclass(frozen=True)
class Widths:
    """Of one decoder: rows of the batch, hidden, feed-forward, key-value and vocabulary widths."""

    rows: int = 2048
    hidden: int = 4096
    inner: int = 14336
    kv: int = 1024
    vocab: int = 32000


@dataclass
class Net:
    """A decoder written op by op; with ``train``, the backward pass follows from what each op reads."""

    b: Builder = field(default_factory=Builder)
    tape: list[tuple[list[int], int]] = field(default_factory=list)

    def param(self, rows: int, columns: int) -> int:
        return self.b.buffer("parameter", (rows, columns), "bfloat16")

    def op(self, reads: list[int], rows: int, width: int, *, over: int | None = None) -> int:
        new = self.b.buffer("activation", (rows, width), "bfloat16")
        self.b.op(reads, [new], in_place=[] if over is None else [(new, over)])
        self.tape.append((reads, new))
        return new

    def gradients(self) -> None:
        """Each op's gradients, last op first: of parameters in role gradient, of activations in passing."""
        grad: dict[int, int] = {}
        for reads, result in reversed(self.tape):
            upstream = grad.pop(result, None)
            for source in reads:
                if self.b.role[source] == "input":
                    continue
                role = "gradient" if self.b.role[source] == "parameter" else "activation"
                new = self.b.buffer(role, self.b.whole[source][1], "bfloat16")
                needs = [x for x in reads if x != source] + ([upstream] if upstream is not None else [])
                self.b.op(needs or reads, [new], stage="backward")
                if source in grad:
                    total = self.b.buffer(role, self.b.whole[source][1], "bfloat16")
                    self.b.op([grad[source], new], [total], in_place=[(total, grad[source])], stage="backward")
                    new = total
                grad[source] = new


def decoder(layers: int, *, train: bool = False, widths: Widths | None = None) -> Graph:
    """A Llama-like decoder: 15 activations a layer, 9 parameters; ``train`` adds the gradients."""
    w, net = widths or Widths(), Net()
    tokens = net.b.buffer("input", (w.rows,), "int64")
    x = net.op([tokens, net.param(w.vocab, w.hidden)], w.rows, w.hidden)
    for _ in range(layers):
        n = net.op([x, net.param(1, w.hidden)], w.rows, w.hidden)
        q = net.op([n, net.param(w.hidden, w.hidden)], w.rows, w.hidden)
        k = net.op([n, net.param(w.hidden, w.kv)], w.rows, w.kv)
        v = net.op([n, net.param(w.hidden, w.kv)], w.rows, w.kv)
        q, k = net.op([q], w.rows, w.hidden, over=q), net.op([k], w.rows, w.kv, over=k)
        a = net.op([q, k, v], w.rows, w.hidden)
        o = net.op([a, net.param(w.hidden, w.hidden)], w.rows, w.hidden)
        x = net.op([x, o], w.rows, w.hidden, over=o)
        n = net.op([x, net.param(1, w.hidden)], w.rows, w.hidden)
        g = net.op([n, net.param(w.hidden, w.inner)], w.rows, w.inner)
        u = net.op([n, net.param(w.hidden, w.inner)], w.rows, w.inner)
        s = net.op([g], w.rows, w.inner, over=g)
        m = net.op([s, u], w.rows, w.inner, over=u)
        d = net.op([m, net.param(w.inner, w.hidden)], w.rows, w.hidden)
        x = net.op([x, d], w.rows, w.hidden, over=d)
    n = net.op([x, net.param(1, w.hidden)], w.rows, w.hidden)
    logits = net.op([n, net.param(w.hidden, w.vocab)], w.rows, w.vocab)
    if train:
        net.gradients()
    return net.b.build([] if train else [logits])


def random_problem(items: int, live: int, seed: int = 0) -> Problem:
    """Items of up to 2,000 units at random moments, about ``live`` of them at once."""
    pick = seeded(seed)
    birth = [pick(items) for _ in range(items)]
    return Problem(
        size=tuple(256 * (1 + pick(2000)) for _ in range(items)),
        birth=tuple(birth),
        death=tuple(b + 1 + pick(2 * live) for b in birth),
        alignment=256,
    )


def long_graph(ops: int, reach: int = 8) -> Graph:
    """One buffer an op, each read once, up to ``reach`` ops later: a graph of any size, made in no time."""
    sizes = (4096, 1024, 16384, 2048, 512)
    reads = tuple(((t - 1 - t * 7919 % min(t, reach)),) if t else () for t in range(ops))
    shapes = tuple((sizes[t % 5] // 4,) for t in range(ops))
    graph = Graph(
        target="cpu",
        buffers=Buffers(bytes=tuple(sizes[t % 5] for t in range(ops)), role=("activation",) * ops),
        values=Values(
            buffer=tuple(range(ops)), offset=(0,) * ops, shape=shapes, stride=((1,),) * ops, dtype=("float32",) * ops
        ),
        ops=Ops(
            target=("test.op",) * ops,
            reads=reads,
            writes=tuple((t,) for t in range(ops)),
            overwrites=((),) * ops,
            saves=((),) * ops,
            recompute=(False,) * ops,
            stage=("forward",) * ops,
        ),
        inputs=(),
        outputs=(ops - 1,) if ops else (),
        notes=Notes(name="", buffers=(), ops=OpNotes(phase=(), modality=(), flops=(), module=(), source=())),
    )
    return blank_notes(graph)
