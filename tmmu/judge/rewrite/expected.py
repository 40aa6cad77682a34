"""The call that an op of a rewritten graph has to make, from the call of its origin: text, operands, number inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tmmu.ir.call_text import LIST, NUMBER, TENSOR, Argument, CallText, tag_count
from tmmu.ir.rewrite import SUBLIST, TWIN, Part
from tmmu.judge.rewrite.facts import LIST_OPERATORS, TWINS, has_twin


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """``operands`` and ``numbers`` are positions in the origin's rows, in the order of the new places."""

    text: CallText
    operands: tuple[int, ...]
    numbers: tuple[int, ...]


def expected_call(text: CallText, kind: str, part: Part) -> ExpectedCall | str:
    """What an op of this kind calls, or why no op of this kind can stand for the origin."""
    if kind == TWIN:
        return _twin(text)
    if kind == SUBLIST:
        return _sublist(text, part)
    return ExpectedCall(text=text, operands=tuple(range(text.places)), numbers=tuple(range(text.numbers)))


def _twin(text: CallText) -> ExpectedCall | str:
    """The call without the arguments through which it has effects."""
    if not has_twin(text):
        return f"{text.operator} has no twin without effects"
    effects = TWINS[text.operator]
    pieces = [(argument, index not in effects) for index, argument in enumerate(text.arguments)]
    twin = replace(text, arguments=tuple(argument if is_kept else [] for argument, is_kept in pieces))
    return _kept(twin, pieces, range(len(text.results)), text.results)


def _sublist(text: CallText, part: Part) -> ExpectedCall | str:
    """The call on a range of its lists; what is no list is taken whole."""
    if text.operator not in LIST_OPERATORS:
        return f"{text.operator} is not known to be done entry by entry"
    count = list_length(text)
    if len(part) != 2 or not 0 <= part[0] < part[1] <= count:
        return f"entries {part} are none of the {count} of {text.operator}"
    low, high = part
    arguments: list[Argument] = []
    pieces: list[tuple[Argument, bool]] = []
    for argument in text.arguments:
        items = _items(argument)
        if items is None:
            pieces.append((argument, True))
        else:
            pieces += [(item, low <= index < high) for index, item in enumerate(items)]
        arguments.append([LIST, *items[low:high]] if items else argument)
    results = text.results[low:high] if any(text.results) else text.results
    item = replace(text, arguments=tuple(arguments), results=results)
    return _kept(item, pieces, range(low, high), text.results)


def list_length(text: CallText) -> int:
    """Entries of the lists of a call, which are all of one length or empty; -1 where they are not."""
    lengths = {len(items) for items in map(_items, text.arguments) if items}
    lengths |= {len(text.results)} if any(text.results) else set()
    return lengths.pop() if len(lengths) == 1 else -1


def _items(argument: Argument) -> list[Argument] | None:
    return argument[1:] if isinstance(argument, list) and argument[:1] == [LIST] else None


def _kept(
    text: CallText, pieces: Sequence[tuple[Argument, bool]], results: range, is_tensor: Sequence[bool]
) -> ExpectedCall:
    """The call ``text`` and the places and number inputs of what is kept: pieces by their mark, results in a range."""
    operands: list[int] = []
    numbers: list[int] = []
    place = number = 0
    for piece, is_kept in pieces:
        after, later = place + tag_count(piece, TENSOR), number + tag_count(piece, NUMBER)
        operands += range(place, after) if is_kept else ()
        numbers += range(number, later) if is_kept else ()
        place, number = after, later
    for index, has_place in enumerate(is_tensor):
        operands += [place] if has_place and index in results else []
        place += has_place
    return ExpectedCall(text=text, operands=tuple(operands), numbers=tuple(numbers))
