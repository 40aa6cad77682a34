"""Gradients that operators can only allocate, computed in parts, so that less is allocated at a time.

A backward operator of several results computes each on its own, as its ``output_mask`` asks: the gradient of an input
by rows, heads or images, then that of a weight, whole, since a sum over parts would round otherwise.
"""

import math

import torch

from tmmu.runtime.kernels.code import Arguments, Code, Instruction, instruction
from tmmu.runtime.kernels.parts import Results, slice_rows, split_heads, split_range, tensor_bytes

aten = torch.ops.aten


def normalization_gradient_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """``native_layer_norm_backward``: the input's gradient some rows at a time, then those of weight and bias."""
    names = ("grad_out", "input", "mean", "rstd")
    shape, mask = args["normalized_shape"], args["output_mask"]
    width, (of_input, *of_rest) = math.prod(shape), results
    tensors = [args[name] for name in names]
    if not mask[0] or of_input is None or not width:
        return None
    if not all(tensor.is_contiguous() for tensor in (*tensors, of_input)):
        return None
    operator, fixed = aten.native_layer_norm_backward.default, (args["weight"], args["bias"])
    count, ones = args["input"].numel() // width, [1] * len(shape)
    grad, x, mean, rstd = (
        tensor.view(count, *(ones if name in {"mean", "rstd"} else shape))
        for name, tensor in zip(names, tensors, strict=True)
    )
    place = of_input.view(count, *shape)
    code = []
    for low, high in split_range(count, tensor_bytes(of_input), scratch):
        g, part, m, r = (slice_rows(tensor, low, high) for tensor in (grad, x, mean, rstd))
        into = (place[low:high], None, None)
        code.append(instruction(operator, g, part, shape, m, r, *fixed, [True, False, False], into=into))
    if any(mask[1:]):
        tail = (args["mean"], args["rstd"], *fixed, [False, *mask[1:]])
        code.append(instruction(operator, *tensors[:2], shape, *tail, into=(None, *of_rest)))
    return tuple(code) if len(code) > 1 else None


def attention_gradient_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """The backward of flash attention on the CPU, some heads of one sequence at a time, or whole sequences."""
    operator = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    flags = (args["dropout_p"], args["is_causal"])
    total_bytes = sum(tensor_bytes(args[name]) for name in ("query", "key", "value"))
    code = []
    for of_queries, of_keys in split_heads(args, total_bytes, scratch):
        queries = [of_queries(args[name]) for name in ("grad_out", "query")]
        keys = [of_keys(args[name]) for name in ("key", "value")]
        saved = [of_queries(args[name]) for name in ("out", "logsumexp")]
        into = [
            None if result is None else pick(result)
            for pick, result in zip((of_queries, of_keys, of_keys), results, strict=True)
        ]
        options = {"attn_mask": of_queries(args.get("attn_mask")), "scale": args.get("scale")}
        code.append(instruction(operator, *queries, *keys, *saved, *flags, **options, into=into))
    return tuple(code) if len(code) > 1 else None


def embedding_gradient_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """``embedding_dense_backward`` in short floats, which it sums in float32: some columns at a time."""
    grad, (result,) = args["grad_output"], results
    options = [args[name] for name in ("indices", "num_weights", "padding_idx", "scale_grad_by_freq")]
    if result is None or grad.dtype.itemsize > 2 or args["scale_grad_by_freq"] or not grad.numel():
        return None
    code = [
        instruction(aten.embedding_dense_backward.default, grad[..., low:high], *options, into=(result[:, low:high],))
        for low, high in split_range(grad.shape[-1], tensor_bytes(result), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def convolution_gradient_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """``convolution_backward``: the input's gradient some images at a time, then the weight's, then the bias'."""
    mask, (of_input, of_weight, of_bias) = args["output_mask"], results
    grad, x = args["grad_output"], args["input"]
    if args["transposed"] or x.dim() != args["weight"].dim() or (mask[0] and of_input is None):
        return None
    code = []
    for low, high in split_range(x.shape[0], tensor_bytes(x), scratch) if mask[0] else ():
        into = (of_input[low:high], None, None)  # type: ignore[index]
        code.append(_convolution_gradient(args, grad[low:high], x[low:high], (True, False, False), into))
    # A weight's gradient is a sum over images: in parts it would be added in another order.
    if mask[1]:
        code.append(_convolution_gradient(args, grad, x, (False, True, False), (None, of_weight, None)))
    if mask[2]:
        code.append(_convolution_gradient(args, grad, x, (False, False, True), (None, None, of_bias)))
    return tuple(code) if len(code) > 1 else None


def _convolution_gradient(
    args: Arguments, grad: torch.Tensor, x: torch.Tensor, mask: tuple[bool, ...], into: Results
) -> Instruction:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    options = [args[name] for name in names]
    operator = aten.convolution_backward.default
    return instruction(operator, grad, x, args["weight"], args["bias_sizes"], *options, list(mask), into=into)
