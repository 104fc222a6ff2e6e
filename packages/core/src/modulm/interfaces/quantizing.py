"""What `modulm quantize` asks of a format (`QuantizationScheme.quantize`), and how layers are written one at a time.

A format says what becomes of one matrix and what is declared of all; `write_layers` does the rest, so that a model need
not fit into memory. Knows no format.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modulm.errors import CheckpointError, ConfigError
from modulm.interfaces.quantization import is_inner

if TYPE_CHECKING:
    import numpy as np

    from modulm.interfaces.checkpoint import Checkpoint

_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32"}
_TYPES |= {"int8": "I8", "uint8": "U8", "float8_e4m3fn": "F8_E4M3"}
_OTHERS = ("vision", "visual", "audio", "multi_modal_projector")
_LEAVES, _ENTRY = 4, 160
"""Room in the header: tensors that a layer may become, and bytes for each beside its name."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the user asked for; None where it is left to the format.

    Attributes:
        format: As in `--format`: "gptq", "gguf-q4_0".
        method: How codes are found: "rtn" (rounding to nearest), or a library's name.
        bits: Of a code.
        group_size: Inputs that share a scale; -1: all of a row.
        calibration: A file of text, for methods that look at activations.
    """

    format: str
    method: str | None = None
    bits: int | None = None
    group_size: int | None = None
    calibration: Path | None = None

    @property
    def inputs_per_scale(self) -> int:
        """`group_size`; 128 where it is left to the format, as AWQ's and GPTQ's libraries have it."""
        return 128 if self.group_size is None else self.group_size

    def takes(self, *options: str) -> None:
        """Raise `ConfigError` where another option than these was given: it would be dropped silently."""
        for name in ("method", "bits", "group_size", "calibration"):
            if name not in options and (value := getattr(self, name)) is not None:
                there = ", ".join(map(_option, options)) or "none"
                raise ConfigError(
                    f"{_option(name)}={value} does not fit --format={self.format!r}, whose options are: {there}. "
                    "Leave it out."
                )

    def one_of(self, option: str, choices: tuple[Any, ...], default: Any) -> Any:
        """Return an option's value, or the default. Raises `ConfigError` where it is not among the choices."""
        value = getattr(self, option)
        if value is not None and value not in choices:
            raise ConfigError(
                f"{_option(option)}={value} is not to be had for --format={self.format!r}. There is: "
                f"{', '.join(map(str, choices))}."
            )
        return default if value is None else value

    def text(self, library: str) -> str:
        """Return the text to calibrate on. Raises `ConfigError` where the library or the file's name is missing."""
        if find_spec(library.replace("-", "_")) is None:
            raise ConfigError(
                f"--format={self.format!r} is made by {library}, which is not installed: pip install {library}. "
                "Without it, --method=rtn rounds to nearest: quicker, and less like the model."
            )
        if self.calibration is None:
            raise ConfigError(
                f"--format={self.format!r} by {library} needs a text that the model is to do well on: give "
                "--calibration FILE, or --method=rtn, which rounds to nearest and looks at none."
            )
        return self.calibration.read_text("utf-8")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


Layer = Callable[[str, "np.ndarray"], Mapping[str, "np.ndarray"]]
"""(module, its matrix [out_features, in_features]) -> what becomes of `<module>.weight`, by the last part of names."""


def write_layers(
    checkpoint: "Checkpoint", out: Path, layer: Layer, declaration: Callable[[list[str]], dict[str, Any]]
) -> int:
    """Write model.safetensors and config.json; return how many layers were quantized.

    Those that `is_inner` means are; all other tensors are copied as they are.

    Args:
        checkpoint: In plain numbers.
        out: A folder.
        layer: Called once for each of them.
        declaration: Given the names of linear layers that are left alone, returns `quantization_config`.

    Raises:
        CheckpointError: There is no such layer, or one has numbers that are none.
    """
    inner, ignored = _modules(checkpoint)
    if not inner:
        raise CheckpointError(f"{checkpoint.path} has no layer that could be quantized.")
    names = list(checkpoint.tensor_names())
    room = 8 * sum(_LEAVES * (len(name) + _ENTRY) // 8 for name in names)  # data are aligned by 8
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    with (out / "model.safetensors").open("wb") as stream:
        stream.seek(8 + room)  # the header comes last, as only then all sizes are known
        for name in names:
            array, module = checkpoint.tensor(name), name.removesuffix(".weight")
            made = {name: array}
            if name in inner:
                made = {f"{module}.{leaf}": one for leaf, one in layer(module, finite(array, name, checkpoint)).items()}
            for part, one in made.items():
                if one.dtype.name not in _TYPES:
                    raise CheckpointError(f"Tensor {part!r} in {checkpoint.path} is {one.dtype.name}: not a plain one.")
                place = [end, end := end + one.nbytes]
                header[part] = {"dtype": _TYPES[one.dtype.name], "shape": list(one.shape), "data_offsets": place}
                stream.write(one.tobytes())
            checkpoint.release()
        raw = json.dumps(header).encode()
        assert len(raw) <= room
        stream.seek(0)
        stream.write(struct.pack("<Q", room) + raw.ljust(room))
    config = checkpoint.config() | {"quantization_config": declaration(ignored)}
    (out / "config.json").write_text(json.dumps(config, indent=2))
    return len(inner)


def _modules(checkpoint: "Checkpoint") -> tuple[set[str], list[str]]:
    """Return the names of the weights that are quantized, and the layers that are not."""
    inner, ignored = set(), []
    for name in checkpoint.tensor_names():
        module, _, last = name.rpartition(".")
        if last != "weight" or len(checkpoint.info(name).shape) != 2 or "embed" in module:
            continue
        if is_inner(module) and not any(other in name for other in _OTHERS):
            inner.add(name)
        else:
            ignored.append(module)
    return inner, sorted(ignored)


def finite(array: "np.ndarray", name: str, checkpoint: "Checkpoint") -> "np.ndarray":
    """Return a tensor's numbers. Raises `CheckpointError` naming it where one is NaN or infinite."""
    import numpy as np

    if not np.isfinite(array).all():
        raise CheckpointError(f"Tensor {name!r} in {checkpoint.path} holds a number that is NaN or infinite.")
    return array
