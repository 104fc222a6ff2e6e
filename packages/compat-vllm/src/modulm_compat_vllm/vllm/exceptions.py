"""Errors that plugins raise to refuse something."""

from typing import Any


class VLLMValidationError(ValueError):
    """A request's parameter is refused; the client gets status 400 with this text."""

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        said = {"parameter": self.parameter, "value": self.value}
        extra = ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)
        return super().__str__() + (f" ({extra})" if extra else "")
