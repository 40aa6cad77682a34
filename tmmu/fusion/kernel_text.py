"""The text of a kernel made safe to call: it returns what went wrong, and no exception leaves it.

Inductor's kernels check each place that they look up, and throw: inside a parallel loop that ends the process. Here a
place that is out of range is noted and its turn of the loop left out, so that nothing is read or written there, and the
kernel returns ``FAULT_INDEX``. A division of whole numbers by zero, which it throws at its end, is ``FAULT_OTHER``.
"""

import re
from collections.abc import Sequence
from typing import Final

FAULT_INDEX, FAULT_OTHER = 1, 2
"""What a kernel returns; 0 where all went well."""
_CHECK: Final = re.compile(r"\b(?:AOTI_)?TORCH_CHECK\(")
_LOOP: Final = re.compile(r"\bfor\s*\(")


class UnknownText(Exception):
    """A kernel's text is not of the form that is known."""


def safe_kernel(text: str, types: Sequence[str], digest: str) -> str:
    """The functions ``kernel_DIGEST``, Inductor's, and ``run_DIGEST(void** pointers) -> int``, without includes."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#include"))
    body, count = re.subn(r"\bvoid\s+kernel\s*\(", f"int kernel_{digest}(", body, count=1)
    begin, end = body.find("{"), body.rfind("}")
    if count != 1 or begin < 0 or end < begin:
        raise UnknownText("a kernel that is no function")
    inside = _without_throws(body[begin + 1 : end])
    arguments = ", ".join(f"({kind})pointers[{place}]" for place, kind in enumerate(types))
    return f"""{body[: begin + 1]}
    std::atomic<int> tmmu_fault{{0}};
{inside}
    return tmmu_fault.load();
}}
extern "C" int run_{digest}(void** pointers) {{
    try {{ return kernel_{digest}({arguments}); }} catch (...) {{ return {FAULT_OTHER}; }}
}}"""


def _without_throws(text: str) -> str:
    """The text with each check as a statement that notes the fault and goes on with the loop's next turn."""
    parts: list[str] = []
    position = 0
    while (check := _CHECK.search(text, position)) is not None:
        start, begin = check.span()
        middle, end = _ends(text, begin)
        if not _is_in_loop(text[:start]):
            raise UnknownText("a place that is looked up outside of a loop")
        condition = text[begin:middle]
        parts += [text[position:start], f"if (!({condition})) {{ tmmu_fault.store({FAULT_INDEX}); continue; }}"]
        position = end
    return "".join((*parts, text[position:]))


def _ends(text: str, begin: int) -> tuple[int, int]:
    """Where the first argument of a check ends, and the statement, semicolon included."""
    depth, first = 1, -1
    is_quoted = False
    for place in range(begin, len(text)):
        letter = text[place]
        if letter == '"':
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif letter == "," and depth == 1 and first < 0:
            first = place
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if not depth:
                end = text.find(";", place)
                if first < 0 or end < 0:
                    break
                return first, end + 1
    raise UnknownText("a check that does not end")


def _is_in_loop(text: str) -> bool:
    """Whether the end of a text is inside the braces of a loop."""
    blocks: list[bool] = []
    begin = 0
    for match in re.finditer(r"[{}]", text):
        if match.group() == "{":
            blocks.append(_LOOP.search(text, begin, match.start()) is not None)
        elif blocks:
            blocks.pop()
        begin = match.end()
    return any(blocks)
