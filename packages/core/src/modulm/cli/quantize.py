"""`modulm quantize`: writes a checkpoint of plain numbers again in fewer bits.

Formats do it themselves (`QuantizationScheme.quantize`): this finds the one that was asked for, checks what there is,
and copies tokenizer and templates. Knows no format but by its name.
"""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from modulm.errors import CheckpointError, ConfigError, NotInstalled, PluginError, UnknownName
from modulm.interfaces.quantizing import Wish

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint
    from modulm.interfaces.quantization import QuantizationScheme

HELP = "write a checkpoint in fewer bits: int8, fp8, nf4, fp4, gptq, awq, gguf-q4_0 ..."
_FAMILY = "modulm.quantization"
_OF = {"int8": "compressed-tensors", "fp8": "compressed-tensors", "nf4": "bitsandbytes", "fp4": "bitsandbytes"}
"""Formats that go by another name than the quantization that reads them; of "gguf-q4_0" that is "gguf"."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", help="folder of a checkpoint in plain numbers")
    parser.add_argument("out", type=Path, help="folder to write; it must not exist, or be empty")
    parser.add_argument("--format", required=True, help=HELP.partition(": ")[2])
    parser.add_argument("--method", help="gptq and awq: rtn (rounding to nearest), or the library that calibrates")
    parser.add_argument("--bits", type=int, help="gptq: of a code")
    parser.add_argument("--group-size", type=int, help="gptq and awq: inputs that share a scale; -1: all of a row")
    parser.add_argument("--calibration", type=Path, help="gptq and awq: a file of text that the model is to do well on")


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint, and say how it was made."""
    from modulm.checkpoints.location import locate

    wish = Wish(
        format=args.format, method=args.method, bits=args.bits, group_size=args.group_size, calibration=args.calibration
    )
    scheme = _scheme(args.format)
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ConfigError(f"{str(args.out)!r} is there already and not an empty folder. Name another.")
    if wish.calibration is not None and not wish.calibration.is_file():
        raise ConfigError(f"--calibration={str(wish.calibration)!r} is no file. Name one of plain text.")
    folder = locate(args.model)
    checkpoint = _plain(folder)
    was_there = args.out.exists()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        how = scheme.quantize(checkpoint, args.out, wish)
    except BaseException:
        shutil.rmtree(args.out)  # it was empty: half a checkpoint is none
        if was_there:
            args.out.mkdir()
        raise
    others = sorted(folder.iterdir()) if (args.out / "config.json").exists() else []  # else a file that holds them
    for file in others:
        if file.is_file() and not file.name.startswith("model") and not (args.out / file.name).exists():
            shutil.copy(file, args.out)
    print(f"{args.out}: {args.format}, {how}.")
    return 0


def _scheme(name: str) -> "type[QuantizationScheme]":
    """Return the scheme that writes a format. Raises `ConfigError` with the package, or with all formats."""
    from modulm.plugins.registry import registry

    family = registry(_FAMILY)
    try:
        scheme: type[QuantizationScheme] = family.get(_OF.get(name) or name.partition("-")[0])
    except NotInstalled as error:
        raise ConfigError(f"--format={name!r} cannot be written: {error}") from error
    except UnknownName:
        raise ConfigError(f"--format={name!r} is unknown. {_there_is()}") from None
    if name not in scheme.writes:
        raise ConfigError(f"--format={name!r} is not written by quantization {scheme.name!r}. {_there_is()}")
    return scheme


def _there_is() -> str:
    from modulm.plugins.registry import registry

    family, found = registry(_FAMILY), dict[str, None]()
    for name in family.names():
        try:
            found |= dict.fromkeys(family.get(name).writes)
        except PluginError:
            continue  # broken, and not what was asked for
    return f"There are: {', '.join(sorted(found)) or 'none, as no package that writes one is installed'}."


def _plain(folder: Path) -> "Checkpoint":
    from modulm.checkpoints.safetensors import SafetensorsCheckpoint
    from modulm.interfaces.quantization_config import quantization_config

    answer = SafetensorsCheckpoint.matches(folder)
    if not answer:
        raise CheckpointError(f"{folder} cannot be quantized: {getattr(answer, 'reason', answer)}.")
    checkpoint = SafetensorsCheckpoint.open(folder)
    declared = quantization_config(checkpoint)
    if declared.keys:
        raise CheckpointError(f"{folder} is quantized already ({declared.method}). Start from its plain checkpoint.")
    return checkpoint
