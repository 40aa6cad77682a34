"""Which kernels attention may pick."""

import torch


def flash_attention_is_on() -> bool:
    """Whether attention may pick the flash kernel, which it does where nobody has switched that off."""
    return bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]
