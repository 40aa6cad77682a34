"""The state of random generators, of which a planned step and the step as it is draw the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tmmu.errors import CaptureFailed, InvalidConfig

Generators = Mapping[str, torch.Generator]


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """States of the CPU's default generator, of those of CUDA devices by index, and of a step's own by name."""

    default: torch.Tensor
    devices: Mapping[int, torch.Tensor]
    own: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, devices: Sequence[int], generators: Generators, names: Sequence[str]) -> "GeneratorStates":
        """As they are now; of the step's own those with these names, ``INVALID_CONFIG`` where one is missing."""
        missing = [name for name in names if name not in generators]
        if missing:
            raise InvalidConfig(f"the step itself has no generator {missing[0]}", fix="report it, with the step")
        return cls(
            torch.get_rng_state(),
            {index: torch.cuda.get_rng_state(index) for index in devices},
            {name: generators[name].get_state() for name in names},
        )

    def set(self, generators: Generators) -> None:
        """Makes it the state of the default generators and of these."""
        torch.set_rng_state(self.default)
        for index, state in self.devices.items():
            torch.cuda.set_rng_state(state, index)
        for name, generator in generators.items():
            generator.set_state(self.own[name])

    def require_reached(self, generators: Generators, moment: str) -> None:
        """``CAPTURE_FAILED`` unless the default generators and these are in this state."""
        states = [("the random state", torch.get_rng_state(), self.default)]
        states += [
            (f"the random state of cuda:{index}", torch.cuda.get_rng_state(index), state)
            for index, state in self.devices.items()
        ]
        states += [
            (f"generator {name}", generator.get_state(), self.own[name]) for name, generator in generators.items()
        ]
        for label, reached, expected in states:
            if not reached.equal(expected):
                raise CaptureFailed(
                    f"{label} {moment} is not what the step itself leaves", fix="report it, with the step"
                )
