"""Anomaly detection of autograd while a model is traced: it looks at no gradient, since a trace has no values.

``torch.autograd.set_detect_anomaly(True)``, as scripts leave it on, asks of each gradient whether it has a NaN. The
answer changes nothing that a step without one does; a plan has no place for the question's temporaries.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tmmu.passes.capture.replace import replace_attribute


@contextmanager
def anomalies_unseen() -> Iterator[None]:
    """Block in which the mode may be on and nothing is asked; afterwards both are as before."""
    set_enabled = torch.set_anomaly_enabled
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def set_unseen(mode: bool, check_nan: bool = True) -> None:  # noqa: FBT001, FBT002 - as torch's
        del check_nan
        set_enabled(mode, False)

    with replace_attribute(torch, "set_anomaly_enabled", set_unseen):
        set_unseen(before[0])
        try:
            yield
        finally:
            set_enabled(*before)
