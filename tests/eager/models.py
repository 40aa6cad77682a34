"""Models that keep tensors in the ways in which Python does: files with ``model``, ``inputs`` and ``loss``."""

from typing import Final

HEAD: Final = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)
        self.setup()

    def setup(self):
        pass
"""
TAIL: Final = """
model = Net()

def inputs():
    return torch.ones(16, 32)

def loss(model, x):
    return model(x).sum()
"""

BODIES: Final = {
    "locals": """
    def forward(self, x):
        a = self.first(x)
        b = a.relu()
        c = self.second(b)
        return c.exp()
""",
    "rebound": """
    def forward(self, x):
        x = self.first(x)
        x = x.relu()
        x = self.second(x)
        return x.exp()
""",
    "helper function": """
    def forward(self, x):
        return self.second(widen(self, x)).exp()

def widen(net, x):
    wide = net.first(x)
    kept = wide * 2
    return kept.sigmoid()
""",
    "temporaries passed on": """
    def forward(self, x):
        x = F.softmax(F.dropout(self.first(x + 1), 0.5, self.training) * 2, dim=-1)
        return F.layer_norm(self.second(F.gelu(x - 1)) + 1, (32,)) @ torch.full((32, 8), 0.5)
""",
    "cycle": """
    def forward(self, x):
        node = {"value": self.first(x)}
        node["self"] = node
        y = node["value"].relu()
        del node
        return self.second(y).exp()
""",
    "list across calls": """
    def setup(self):
        self.seen = []

    def forward(self, x):
        y = self.first(x)
        self.seen.append(y)
        self.seen[:-1] = []
        return self.second(y.relu())
""",
    "generator": """
    def steps(self, x):
        for scale in (1, 2, 3):
            y = self.first(x) * scale
            yield y.relu()

    def forward(self, x):
        total = 0
        for y in self.steps(x):
            total = total + self.second(y)
        return total
""",
    "unfinished generator": """
    def steps(self, x):
        wide = self.first(x)
        for scale in (1, 2, 3):
            yield wide * scale

    def forward(self, x):
        y = next(self.steps(x))
        return self.second(y).exp()
""",
    "caught exception": """
    def broken(self, x):
        wide = self.first(x)
        extra = wide.exp()
        raise ValueError(extra.shape)

    def forward(self, x):
        try:
            self.broken(x)
        except ValueError as error:
            y = self.first(x).relu()
        return self.second(y)
""",
    "exception that is kept": """
    def broken(self, x):
        wide = self.first(x)
        raise ValueError(wide.shape)

    def forward(self, x):
        kept = None
        try:
            self.broken(x)
        except ValueError as error:
            kept = error
        return self.second(self.first(x).relu()).exp()
""",
    "function with attributes": """
    def forward(self, x):
        return self.second(Square.apply(self.first(x)))

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * 2 + ctx.kept * 0
""",
    "saved-tensor hooks": """
    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
            y = self.first(x).sigmoid()
        return self.second(y).exp()
""",
    "checkpoint": """
    def block(self, x):
        return self.second(self.first(x).relu()).exp()

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False).sin()
""",
    "reentrant checkpoint": """
    def block(self, x):
        return self.second(self.first(x).relu()).exp()

    def forward(self, x):
        return checkpoint(self.block, x.requires_grad_(), use_reentrant=True).sin()
""",
    "module hooks": """
    def setup(self):
        self.first.register_forward_hook(lambda module, args, out: out * 2)
        self.second.register_forward_pre_hook(lambda module, args: (args[0].sigmoid(),))
        self.second.register_full_backward_hook(lambda module, grads, outs: None)

    def forward(self, x):
        return self.second(self.first(x)).exp()
""",
    "views and windows": """
    def forward(self, x):
        wide = self.first(x)
        left, right = wide.chunk(2, dim=-1)
        del wide
        part = left[:, :8].t()
        right = right.contiguous()
        return (part.t() @ right[:8, :16].clone()).exp()
""",
    "in place": """
    def forward(self, x):
        y = self.first(x).mul_(0.5)
        y += 1
        z = y.mul(2)
        z[:, 0] = 0.0
        y.data = torch.empty(0)
        return self.second(z).clamp_(min=0)
""",
    "constants": """
    def forward(self, x):
        scale = torch.tensor([[0.5] * 64])
        y = self.first(x) * scale
        del scale
        picked = torch.tensor([1, 2, 3])
        return self.second(y)[:, picked].exp()
""",
    "attributes": """
    def forward(self, x):
        self.last = self.first(x)
        y = self.last.relu()
        z = y * 2
        self.last = y
        return self.second(z).exp()
""",
    "closure": """
    def forward(self, x):
        wide = self.first(x)
        scale = lambda y: y * wide.mean()
        y = wide.relu()
        return scale(self.second(y)).exp()
""",
    "dropout and norm": """
    def setup(self):
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.25)

    def forward(self, x):
        return self.second(self.drop(self.norm(self.first(x)).relu()))
""",
    "attention": """
    def setup(self):
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x):
        y = x[None].expand(2, -1, -1)
        return self.attend(y, y + 1, y, need_weights=False)[0].mean(1)
""",
    "recurrent": """
    def setup(self):
        self.cells = nn.GRU(32, 16, num_layers=2)

    def forward(self, x):
        out, last = self.cells(x[:, None])
        return out.exp()
""",
    "convolution": """
    def setup(self):
        self.conv = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x):
        skip = self.conv(x[None, None])
        y = F.max_pool2d(skip.relu(), 2)
        return F.interpolate(y, scale_factor=2).add(skip).sum(1)
""",
    "autocast": """
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
            z = self.second(y.relu())
        return z.float().exp()
""",
    "other gradient inside": """
    def forward(self, x):
        with torch.enable_grad():
            probe = x.detach().requires_grad_()
            slope, = torch.autograd.grad(self.first(probe).sum(), probe)
        return self.second(self.first(x) * slope.mean()).exp()
""",
    "context manager": """
    def forward(self, x):
        with Holder(self.first(x)) as y:
            z = y.relu()
        return self.second(z).exp()

class Holder:
    def __init__(self, tensor):
        self.tensor = tensor

    def __enter__(self):
        return self.tensor

    def __exit__(self, *error):
        pass
""",
    "rules for composites": """
    def forward(self, x):
        a = self.first(x)
        kinds = F.one_hot((a[:, 0] > 0).long(), 2).float()
        wide = F.pad(F.softmax(a, -1, dtype=torch.float64).float(), (1, 1))
        parts = torch.tensor_split(wide, torch.tensor([8, 40]), dim=1)
        return F.log_softmax(self.second(a), -1) + kinds.sum() + parts[1].sum()
""",
    "mode of functions": """
    def forward(self, x):
        class Counting(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))
        with Counting():
            return self.second(F.relu(self.first(x)) * 2)
""",
    "mode of operators": """
    def forward(self, x):
        from torch.utils._python_dispatch import TorchDispatchMode
        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))
        with Counting():
            return self.second(F.relu(self.first(x)) * 2)
""",
    "device context": """
    def forward(self, x):
        with torch.device("cpu"):
            noise = torch.zeros(16, 64) + 1
        return self.second(F.relu(self.first(x)) * noise)
""",
    "tensor hooks": """
    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad * 2)
        return self.second(F.gelu(hidden))
""",
    "hooks of gradients": """
    def setup(self):
        self.second.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
        self.second.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad * 2))

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))
""",
    "hook of all modules": """
    def forward(self, x):
        hook = nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 1)
        try:
            return self.second(F.relu(self.first(x)))
        finally:
            hook.remove()
""",
    "parametrization": """
    def setup(self):
        nn.utils.parametrizations.weight_norm(self.first)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))
""",
    "functional call": """
    def forward(self, x):
        weights = {name: p * 2 for name, p in self.first.named_parameters()}
        return self.second(torch.func.functional_call(self.first, weights, (x,)))
""",
    "gradient of a function": """
    def forward(self, x):
        turned = torch.func.grad(lambda y: F.silu(y).sum())(self.first(x))
        return self.second(turned)
""",
    "mapped": """
    def forward(self, x):
        return self.second(torch.vmap(lambda row: F.softplus(row) * row)(self.first(x)))
""",
    "moved": """
    def forward(self, x):
        hidden = self.first(x).to("cpu").cpu().float()
        double = hidden.to(torch.float64, copy=True)
        return self.second(double.float().to("cpu", copy=True))
""",
    "sequential of modules": """
    def setup(self):
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)])

    def forward(self, x):
        return self.layers(x) + x
""",
    "list of results": """
    def forward(self, x):
        parts = [self.first(x * scale).relu() for scale in (1, 2, 3)]
        stacked = torch.stack(parts)
        return self.second(stacked.sum(0))
""",
}
"""By what keeps the tensors."""


def model_text(name: str) -> str:
    """The file of a model."""
    return HEAD + BODIES[name] + TAIL
