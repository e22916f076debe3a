"""What the library refuses, as exceptions with its sentence."""


class GyreError(RuntimeError):
    """The model, the machine or the device cannot do what was asked; str() is one sentence that says why."""


class RequestError(GyreError, ValueError):
    """A prompt or a parameter is at fault, and nothing else."""
