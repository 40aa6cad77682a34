"""A process that runs operators: a request per line of its input, an answer per line of its output, both JSON.

``{"list": true}`` is answered with all pairs of operator and dtype; ``{"operator", "dtype", "samples"}`` with the rows
of that pair. What operators print goes to the errors. A crash ends the process, and with it one pair.
"""

import json
import os
import sys
import tempfile
import warnings
from typing import Any, TextIO

_ANSWERS = os.dup(1)
os.dup2(2, 1)


def rows_of(name: str, dtype: str, samples: int) -> list[dict[str, str]]:
    """One row for each sample and route."""
    from benchmarks.operators.comparison import UNINITIALIZED  # noqa: PLC0415 - torch comes after the streams are set
    from benchmarks.operators.routes import outcomes  # noqa: PLC0415
    from benchmarks.operators.samples import cases  # noqa: PLC0415

    bits = name.partition(":")[0] not in UNINITIALIZED
    return [
        {"sample": label, "route": o.route, "outcome": o.outcome, "reason": o.reason[:400], "excuse": o.excuse}
        for label, case in cases(name, dtype, samples)
        for o in outcomes(case, bits=bits)
    ]


def _answer(request: dict[str, Any]) -> Any:
    if request.get("list"):
        from benchmarks.operators.samples import pairs  # noqa: PLC0415

        return pairs()
    try:
        return rows_of(request["operator"], request["dtype"], request["samples"])
    except Exception as error:  # noqa: BLE001 - the database itself: a sample that cannot be made
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return [{"sample": "", "route": "samples", "outcome": "eager raises", "reason": reason, "excuse": ""}]


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer until the input ends."""
    from benchmarks.operators.routes import eager_kernels  # noqa: PLC0415

    with eager_kernels(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in requests:
            answers.write(json.dumps(_answer(json.loads(line))) + "\n")
            answers.flush()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMMU_CACHE_DIR"] = folder  # plans of this run alone
        serve(sys.stdin, os.fdopen(_ANSWERS, "w"))


if __name__ == "__main__":
    main()
