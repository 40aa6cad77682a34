"""Which expert each token goes to where a capacity is declared: as many experts as can be are full.

A gate gives each of T tokens k of E experts. Of a capacity factor F an expert gets at most C = ceil(F T k / E) tokens
of those that one rank's gate sees, and no more than T. The routing here gives each expert one token, or none where
``reaches_all`` is not asked for, and fills experts to C one after another, from one of them on and beyond the last from
the first, until all T k choices are given: the next gets what is left.

Source: the capacity factor of Switch Transformers (Fedus, Zoph, Shazeer 2021), with the k of GShard's and Megatron's.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A choice of ``choices`` of ``experts`` for each of ``tokens``."""

    tokens: int
    choices: int
    experts: int

    def capacity(self, factor: Fraction) -> int:
        """Tokens that an expert gets at most."""
        return min(self.tokens, ceil(factor * self.tokens * self.choices / self.experts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Experts are full from ``first`` on. ``reaches_all``: each expert gets a token, if there are enough."""

    first: int
    reaches_all: bool


def last_full(gate: Gate, capacity: int, *, reaches_all: bool) -> Filling:
    """The filling in which the last experts are full."""
    counts = tokens_by_expert(gate, capacity, Filling(first=0, reaches_all=reaches_all))
    return Filling(first=-counts.count(capacity) % gate.experts, reaches_all=reaches_all)


def tokens_by_expert(gate: Gate, capacity: int, filling: Filling) -> tuple[int, ...]:
    """Tokens of each expert. Their sum is tokens times choices."""
    total = gate.tokens * gate.choices
    least = int(filling.reaches_all and total >= gate.experts)
    left = total - least * gate.experts
    counts = [least] * gate.experts
    for expert in _order(gate, filling):
        more = min(capacity - least, left)
        counts[expert] += more
        left -= more
    return tuple(counts)


def _order(gate: Gate, filling: Filling) -> list[int]:
    return [(filling.first + place) % gate.experts for place in range(gate.experts)]


def choices_of_tokens(gate: Gate, capacity: int, filling: Filling) -> torch.Tensor:
    """``int64[tokens, choices]``: the experts of each token, all different, with the counts of ``tokens_by_expert``.

    Neighbouring tokens go to different experts, so that each half of the tokens is routed like the whole, and each
    half of a half, as far as the numbers divide.
    """
    counts, order = tokens_by_expert(gate, capacity, filling), _order(gate, filling)
    runs = torch.repeat_interleave(torch.tensor(order), torch.tensor([counts[expert] for expert in order]))
    # An expert's run is no longer than there are tokens: in a row of the transpose it is once at most.
    by_token = runs.view(gate.choices, gate.tokens).T
    choices = torch.empty_like(by_token, memory_format=torch.contiguous_format)
    choices[torch.tensor(_spread(gate.tokens))] = by_token
    return choices


def _spread(count: int) -> list[int]:
    """A permutation of so many places in which neighbours lie in different halves, and so on in the halves."""
    power = count & -count
    bits = power.bit_length() - 1
    reversed_bits = [int(f"{low:0{bits}b}"[::-1], 2) if bits else 0 for low in range(power)]
    return [reversed_bits[token % power] * (count // power) + token // power for token in range(count)]
