"""The call that an op of a rewritten graph has to make, from the call of its origin: text, operands, number inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from tmmu.ir.call_text import LIST, NUMBER, TENSOR, Argument, CallText, encode_float, tag_count
from tmmu.ir.rewrite import ARGUMENT, RESULT, SCALE, SUBLIST, TWIN, Part
from tmmu.judge.rewrite.facts import LIST_OPERATORS, TWINS, has_twin, twin_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """``operands`` and ``numbers`` are positions in the origin's rows, in the order of the new places."""

    text: CallText
    operands: tuple[int, ...]
    numbers: tuple[int, ...]
    reread: tuple[int, ...] = ()
    """Those of the operands that the origin makes, and that are read here."""


@dataclass(frozen=True, slots=True)
class CallPlaces:
    """A call, and of each argument, or of each entry of one that is a list, its places and number inputs."""

    text: CallText
    places: tuple[tuple[tuple[range, range], ...], ...]
    results: tuple[int, ...]
    """Per result, its place; -1 where it is no tensor."""
    length: int
    """Entries of the lists, which are all of one length or empty; -1 where they are not."""

    @classmethod
    def of(cls, text: CallText) -> "CallPlaces":
        """Walks the text once."""
        place = number = 0
        rows = []
        for argument in text.arguments:
            row = []
            for entry in _entries(argument):
                tensors, inputs = tag_count(entry, TENSOR), tag_count(entry, NUMBER)
                row.append((range(place, place + tensors), range(number, number + inputs)))
                place, number = place + tensors, number + inputs
            rows.append(tuple(row))
        results = []
        for is_tensor in text.results:
            results.append(place if is_tensor else -1)
            place += is_tensor
        lengths = {len(argument) - 1 for argument in text.arguments if is_list(argument)} - {0}
        lengths |= {len(results)} if any(text.results) else set()
        return cls(text, tuple(rows), tuple(results), lengths.pop() if len(lengths) == 1 else -1)

    def kept(self, text: CallText, chosen: Sequence[slice], results: slice) -> ExpectedCall:
        """The call ``text``, of the chosen entries of each argument and of a slice of the results."""
        pairs = [pair for row, entries in zip(self.places, chosen, strict=True) for pair in row[entries]]
        operands = [place for tensors, _ in pairs for place in tensors]
        operands += [place for place in self.results[results] if place >= 0]
        numbers = [place for _, inputs in pairs for place in inputs]
        return ExpectedCall(text=text, operands=tuple(operands), numbers=tuple(numbers))


_ALL: Final = slice(None)


def expected_call(call: CallPlaces, kind: str, part: Part, target: str) -> ExpectedCall | str:
    """What an op of this kind calls on a target, or why no op of this kind can stand for the origin."""
    text = call.text
    if kind == TWIN:
        return _twin(call, target)
    if kind == SUBLIST:
        return _sublist(call, part)
    return call.kept(text, [_ALL] * len(text.arguments), _ALL)


def _twin(call: CallPlaces, target: str) -> ExpectedCall | str:
    """The call without effects that computes the results of ``TWINS``."""
    text = call.text
    if not has_twin(text, target):
        return f"{text.operator} has no twin without effects"
    twin = TWINS[text.operator]
    arguments, operands, numbers = list[Argument](), list[int](), list[int]()
    for what, place in twin.arguments:
        if what == ARGUMENT:
            arguments.append(text.arguments[place])
            operands += [each for tensors, _ in call.places[place] for each in tensors]
            numbers += [each for _, inputs in call.places[place] for each in inputs]
        elif what == RESULT:
            arguments.append([TENSOR, 0])
            operands.append(call.results[place])
        else:
            scale = twin_scale(text.arguments[place], target) if what == SCALE else None
            arguments.append([] if scale is None else encode_float(scale))
    operands += [call.results[place] for place in twin.results if call.results[place] >= 0]
    results = tuple(text.results[place] for place in twin.results)
    return ExpectedCall(
        text=replace(text, operator=twin.operator, arguments=tuple(arguments), results=results),
        operands=tuple(operands),
        numbers=tuple(numbers),
        reread=tuple(call.results[place] for what, place in twin.arguments if what == RESULT),
    )


def _sublist(call: CallPlaces, part: Part) -> ExpectedCall | str:
    """The call on a range of its lists; what is no list is taken whole."""
    text = call.text
    if text.operator not in LIST_OPERATORS:
        return f"{text.operator} is not known to be done entry by entry"
    if len(part) != 2 or not 0 <= part[0] < part[1] <= call.length:
        return f"entries {part} are none of the {call.length} of {text.operator}"
    entries = slice(*part)
    results = entries if any(text.results) else _ALL
    arguments = tuple([LIST, *each[1:][entries]] if is_list(each) else each for each in text.arguments)
    chosen = [entries if is_list(argument) else _ALL for argument in text.arguments]
    return call.kept(replace(text, arguments=arguments, results=text.results[results]), chosen, results)


def is_list(argument: Argument) -> TypeGuard[list[Argument]]:
    """Whether an argument is a list or tuple."""
    return isinstance(argument, list) and argument[:1] == [LIST]


def _entries(argument: Argument) -> Sequence[Argument]:
    return argument[1:] if is_list(argument) else (argument,)
