"""What an emulator is started with."""

from __future__ import annotations

from typing import Any

import msgspec

from inferometer.errors import InputError
from inferometer.specs.checks import positive, whole
from inferometer.specs.deployment import Deployment


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment to emulate, where to listen, and how answers are made.

    Raises:
        InputError: a scale that is not above 0, a port that is none, negative counts.
    """

    deployment: Deployment
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any that is free."""
    unix_socket: str | None = None
    """Path of a socket to listen on, instead of host and port."""
    api_key: str | None = None
    served_model_name: str | None = None
    """None: the model's own name."""
    time_scale: float = 1.0
    """Real seconds a simulated second takes."""
    output_tokens: Any = None
    """Lengths of answers where clients let the model stop, as in a study file; None: as long as asked for."""
    template_tokens: int = 4
    """What a chat template adds to the words of the messages."""
    typical_tokens: int = 2048
    """Prompt and output of a usual request, by which the pool of a model of several kinds of layers is stated."""
    faults: tuple[str, ...] = ()
    """See `faults.KINDS`."""
    seed: int = 0
    log_file: str | None = None
    """Of the start-up log; None: standard error."""

    def __post_init__(self) -> None:
        positive("--time-scale", self.time_scale)
        whole("--seed", self.seed)
        whole("--template-tokens", self.template_tokens)
        if whole("--port", self.port) > 65535:
            raise InputError("--port", self.port, "a port from 0 (any) to 65535")

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or self.deployment.model.name
