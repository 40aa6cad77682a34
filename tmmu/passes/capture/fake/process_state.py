"""What user code changes of the whole process, put back: working directory, gradients, default device, modes.

A file may say ``os.chdir``, ``torch.set_default_device`` or enter a mode for good, as a script does. A trace and a run
both execute it, one after the other in one process, and each must find what the first found.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tmmu.torch_private import default_device_context, function_modes, set_default_device_context, set_function_modes


@contextmanager
def process_state_restored() -> Iterator[None]:
    """Block after which the process is as before, whatever code inside has changed."""
    folder, modes, device = Path.cwd(), function_modes(), default_device_context()
    has_gradients = torch.is_grad_enabled()
    try:
        yield
    finally:
        set_function_modes(modes)
        set_default_device_context(device)
        torch.set_grad_enabled(has_gradients)
        os.chdir(folder)


def default_device_set() -> torch.device | None:
    """The device that ``torch.set_default_device`` has named, if it was called."""
    context = default_device_context()
    return None if context is None else context.device
