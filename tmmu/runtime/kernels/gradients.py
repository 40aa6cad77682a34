"""Gradients that operators can only allocate, a part at a time or a result at a time: the same bits, and less held.

A gradient of several results computes them apart from each other, and can be asked for some: of an input by rows,
heads or images, of a weight whole.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from tmmu.runtime.kernels.code import Code, Instruction, instruction
from tmmu.runtime.kernels.parts import Places, bytes_of, cuts, heads_in_parts, rows_of

aten = torch.ops.aten


def normalization_gradient_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Of a layer normalization: the input's some rows at a time, then those of weight and bias."""
    names = ("grad_out", "input", "mean", "rstd")
    shape, mask = given["normalized_shape"], given["output_mask"]
    width, (of_input, *of_rest) = math.prod(shape), results
    tensors = [given[name] for name in names]
    if not mask[0] or of_input is None or not width or not all(one.is_contiguous() for one in (*tensors, of_input)):
        return None
    operator, fixed = aten.native_layer_norm_backward.default, (given["weight"], given["bias"])
    count, ones = given["input"].numel() // width, [1] * len(shape)
    grad, x, mean, rstd = (
        one.view(count, *(ones if name in {"mean", "rstd"} else shape))
        for name, one in zip(names, tensors, strict=True)
    )
    place = of_input.view(count, *shape)
    code = []
    for low, high in cuts(count, bytes_of(of_input), scratch):
        g, part, m, r = (rows_of(one, low, high) for one in (grad, x, mean, rstd))
        into = (place[low:high], None, None)
        code.append(instruction(operator, g, part, shape, m, r, *fixed, [True, False, False], into=into))
    if any(mask[1:]):
        rest = (given["mean"], given["rstd"], *fixed, [False, *mask[1:]])
        code.append(instruction(operator, *tensors[:2], shape, *rest, into=(None, *of_rest)))
    return tuple(code) if len(code) > 1 else None


def attention_gradient_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Of flash attention on the CPU, some heads of one sequence at a time, or whole sequences."""
    operator = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    flags = (given["dropout_p"], given["is_causal"])
    held = sum(bytes_of(given[name]) for name in ("query", "key", "value"))
    code = []
    for of_queries, of_keys in heads_in_parts(given, held, scratch):
        queries = [of_queries(given[name]) for name in ("grad_out", "query")]
        keys = [of_keys(given[name]) for name in ("key", "value")]
        saved = [of_queries(given[name]) for name in ("out", "logsumexp")]
        into = [
            None if one is None else pick(one)
            for pick, one in zip((of_queries, of_keys, of_keys), results, strict=True)
        ]
        rest = {"attn_mask": of_queries(given.get("attn_mask")), "scale": given.get("scale")}
        code.append(instruction(operator, *queries, *keys, *saved, *flags, **rest, into=into))
    return tuple(code) if len(code) > 1 else None


def embedding_gradient_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Of an embedding in short floats, which are added in single precision: some columns at a time."""
    grad, (result,) = given["grad_output"], results
    rest = [given[name] for name in ("indices", "num_weights", "padding_idx", "scale_grad_by_freq")]
    if result is None or grad.dtype.itemsize > 2 or given["scale_grad_by_freq"] or not grad.numel():
        return None
    code = [
        instruction(aten.embedding_dense_backward.default, grad[..., low:high], *rest, into=(result[:, low:high],))
        for low, high in cuts(grad.shape[-1], bytes_of(result), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def convolution_gradient_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Of a convolution: the input's some images at a time, then the weight's, then the bias'."""
    mask, (of_input, of_weight, of_bias) = given["output_mask"], results
    grad, x = given["grad_output"], given["input"]
    if given["transposed"] or x.dim() != given["weight"].dim() or (mask[0] and of_input is None):
        return None
    code = []
    for low, high in cuts(x.shape[0], bytes_of(x), scratch) if mask[0] else ():
        into = (of_input[low:high], None, None)  # type: ignore[index]
        code.append(_of_convolution(given, grad[low:high], x[low:high], (True, False, False), into))
    if mask[1]:
        code.append(_of_convolution(given, grad, x, (False, True, False), (None, of_weight, None)))
    if mask[2]:
        code.append(_of_convolution(given, grad, x, (False, False, True), (None, None, of_bias)))
    return tuple(code) if len(code) > 1 else None


def _of_convolution(
    given: Mapping[str, Any], grad: torch.Tensor, x: torch.Tensor, mask: tuple[bool, ...], into: Places
) -> Instruction:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    rest = [given[name] for name in names]
    operator = aten.convolution_backward.default
    return instruction(operator, grad, x, given["weight"], given["bias_sizes"], *rest, list(mask), into=into)
