"""A module's tensors on a remote device, and calls of the module with them in place of its own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tmmu.client.device.local_operands import map_tensors
from tmmu.client.device.registration import RemoteDevice
from tmmu.client.device.remote_tensor import DEVICE_NAME, RemoteTensor
from tmmu.client.shadow.module_tensors import ModuleTensors
from tmmu.errors import UnsupportedOp


class RemoteCopy:
    """``tensors`` by name, as ``source`` had them. Nothing writes them: a call that would is refused."""

    def __init__(self, source: ModuleTensors, tensors: Mapping[str, RemoteTensor], device: RemoteDevice) -> None:
        self.source, self.device = source, device
        self._uploaded, self._tensors = tensors, dict[str, Any](tensors)
        """As they came, and as a call leaves them: what a module assigns in its place stands here then."""
        self._contents = {name: tensor.remote_storage.content for name, tensor in tensors.items()}

    @property
    def written(self) -> list[str]:
        """Names of tensors that a call has written there, or put another one in the place of."""
        return [
            name
            for name, tensor in self._uploaded.items()
            if self._tensors[name] is not tensor
            or tensor.remote_storage.content is not self._contents[name]
            or self._contents[name].version
        ]

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns, remote tensors; ``UNSUPPORTED_OP`` where it writes its own, which ends this copy."""
        moved_args, moved_kwargs = map_tensors((args, kwargs), _moved)
        result = torch.func.functional_call(module, self._tensors, moved_args, moved_kwargs, strict=True)
        if self.written:
            raise UnsupportedOp(
                f"the module writes {self.written[0]} when it runs, which would be here no more what it is there",
                fix='use module.eval(), or module.to("remote")',
            )
        return result


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if isinstance(tensor, RemoteTensor) else tensor.to(DEVICE_NAME)
