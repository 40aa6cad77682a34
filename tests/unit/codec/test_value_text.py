"""Texts of values: literals, calls of names on them, or text; nothing is evaluated."""

import pytest

from tmmu.codec.value_text import NamedCall, parse_value, resolve
from tmmu.errors import InvalidConfig


def call(name: str, *arguments: object, **keywords: object) -> NamedCall:
    return NamedCall(name=name, arguments=arguments, keywords=tuple(keywords.items()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1e-3", -1e-3),
        ("(1, 2)", (1, 2)),
        ("set()", set()),
        ("gelu", "gelu"),
        ("a b", "a b"),
        ("torch.bfloat16", "torch.bfloat16"),
        ("'layer(1)'", "layer(1)"),
        ("f(", "f("),
        ("", ""),
        ("\0", "\0"),
        ("(" * 500, "(" * 500),
        ("Config()", call("Config")),
        (" Config(1, n=[2, 'a']) ", call("Config", 1, n=[2, "a"])),
        ("[A(), (B(-1),), {'k': C(x={1})}]", [call("A"), (call("B", -1),), {"k": call("C", x={1})}]),
    ],
)
def test_text_is_a_literal_a_call_or_itself(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "f(x)", "a.f(1)", "f(1)(2)", "f(*[1])", "f(**{})", "f(1) + 1", "f(1).x", "f(1)[0]", "[f(1) for f in ()]",
        "lambda: f(1)", "f(1) if 1 else 2", "{f(1)}", "{f(1): 2}", "{**f(1)}", "f(x := 1)", "f(f'{1}')",
    ],
)  # fmt: skip
def test_calls_of_any_other_form_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="is no literal"):
        parse_value(text)


@pytest.mark.parametrize("text", ["A(1 2)", f"A({'9' * 5000})", "A(" * 300 + ")" * 300, "A(n=)", "a.b(,)", "A(\0)"])
def test_a_call_that_cannot_be_read_is_no_text(text: str) -> None:
    with pytest.raises(InvalidConfig, match="the call cannot be read"):
        parse_value(text)


def test_an_argument_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="twice"):
        parse_value("A(B(n=1, n=2))")


@pytest.mark.parametrize("text", ["{[1]: A()}", "A({[1]: 2, 'k': B()})", "[{(1, []): A()}]"])
def test_keys_beside_a_call_must_be_hashable(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"no key of a dictionary|no literal"):
        parse_value(text)


def test_resolve_makes_inner_calls_first() -> None:
    made_calls: list[str] = []

    def make(name: str, arguments: object, keywords: object) -> str:
        made_calls.append(name)
        return f"{name}{arguments}{keywords}"

    assert resolve(parse_value("A([B(1)], k={'x': C()})"), make) == "A[['B[1]{}']]{'k': {'x': 'C[]{}'}}"
    assert made_calls == ["B", "C", "A"]
