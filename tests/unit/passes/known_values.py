"""A file whose model looks at values: the body of ``forward``, and the names of what it looks at."""

FILE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(2))
        self.register_buffer("keep", torch.tensor([True, False, True]))
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, pad):
        {body}

model = Net
def inputs(): return (torch.randn(3, 4), torch.tensor([False, True, True]))
"""
BODIES = {
    "an input": ("return x * 2 if pad.any() else x", ("pad",)),
    "the number of an input": ("return x[: int(pad.sum().item())]", ("pad",)),
    "a counter that the step advances": ("self.steps += 1; return x if self.steps.item() == 3 else x[:1]", ("steps",)),
    "a mask": ("return x[pad]", ("pad",)),
    "a mask of two indices": ("return x[pad, 1:]", ("pad",)),
    "places that are not zero": ("return torch.nonzero(self.keep) + 1", ("keep",)),
    "lengths": ("return torch.repeat_interleave(x, pad.long(), dim=0)", ("pad",)),
    "a selection": ("return x.masked_select(pad[:, None])", ("pad",)),
    "whether tensors are equal": ("return x if torch.equal(pad, self.keep) else x[:1]", ("keep", "pad")),
    "whether tensors are close": ("return x if torch.allclose(self.keep * 1.0, pad * 1.0) else x[:1]", ("keep", "pad")),
    "places of a split": ("return x.tensor_split(pad[1:].long(), 1)[1]", ("pad",)),
    "a count of pieces": ("return x.tensor_split(self.steps)[1]", ("steps",)),
    "two": ("return x[pad] if self.keep.any() else x", ("keep", "pad")),
    "none": ("return x[self.steps + 0 * pad.long()]", ()),
}
