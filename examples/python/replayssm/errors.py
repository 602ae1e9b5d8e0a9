"""What goes wrong, as an exception with the plugin's fields."""

from __future__ import annotations

from typing import Optional

from .structs import ROLE_NAMES, Error, Status


class ReplayError(RuntimeError):
    """A call that was refused; nothing has changed. str() is the plugin's message.

    status    a Status, e.g. Status.SHAPE
    role      the tensor at fault, by name ("d_cache"), or None
    dim       the dimension at fault, from 0, or -1
    expected, got  both sides: sizes, bits, device types or ids, elements or bytes, by status (abi/rssm_base.h)
    cuda_error     the driver's code when status is CUDA or DEVICE_LOST, else 0
    """

    def __init__(self, status: int, message: str, role: Optional[str] = None, dim: int = -1, expected: int = 0,
                 got: int = 0, cuda_error: int = 0) -> None:
        super().__init__(message)
        self.status = Status(status) if status in Status._value2member_map_ else status
        self.role, self.dim, self.expected, self.got, self.cuda_error = role, dim, expected, got, cuda_error

    @classmethod
    def of(cls, error: Error) -> ReplayError:
        return cls(error.status, error.message.decode("utf-8", "replace"), ROLE_NAMES.get(error.role), error.dim,
                   error.expected, error.got, error.cuda_error)
