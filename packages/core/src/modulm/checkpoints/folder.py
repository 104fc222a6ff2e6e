"""The JSON and template files of a Hugging Face model folder: config, generation config, tokenizer, chat template.

Shared by every format that lives in such a folder. Reads no tensors, imports no torch.
"""

import json
from pathlib import Path
from typing import Any

from modulm.errors import CheckpointError
from modulm.interfaces.checkpoint import SPECIAL_TOKENS, TokenizerData


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file. Raises `CheckpointError` naming the file and the fault's place."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        there = ", ".join(sorted(entry.name for entry in path.parent.iterdir())[:12]) if path.parent.is_dir() else ""
        raise CheckpointError(
            f"{path.name!r} is missing in {path.parent}. There are: {there or 'no files'}."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a JSON object.")
    return content


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file, or an empty one when there is no such file."""
    return read_json(path) if path.exists() else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as text: {error}. Fetch it again.") from error


def read_tokenizer(folder: Path) -> TokenizerData:
    """Return the folder's tokenizer. Raises `CheckpointError` when there is no tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(
            f"'tokenizer.json' is missing in {folder}; other tokenizer files are not read. Write it once with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    config = read_optional_json(folder / "special_tokens_map.json")
    config |= read_optional_json(folder / "tokenizer_config.json")
    for name in SPECIAL_TOKENS:
        if isinstance(config.get(name), dict):
            config[name] = config[name].get("content")
    return TokenizerData(tokenizer_json=_read_text(path), config=config, chat_template=_chat_template(folder, config))


def _chat_template(folder: Path, config: dict[str, Any]) -> str | dict[str, str] | None:
    """Files win over tokenizer_config.json, as in transformers."""
    named = {path.stem: _read_text(path) for path in folder.glob("additional_chat_templates/*.jinja")}
    single = folder / "chat_template.jinja"
    if single.exists():
        default = _read_text(single)
        return {"default": default, **named} if named else default
    if (folder / "chat_template.json").exists():
        template = read_json(folder / "chat_template.json").get("chat_template")
    else:
        template = config.get("chat_template")
    if isinstance(template, list):
        return _named_templates(folder, template)
    return template if isinstance(template, str) else (named or None)


def _named_templates(folder: Path, entries: list[Any]) -> dict[str, str]:
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in entries}
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"The chat_template of {folder} is a list, and an entry of it lacks 'name' or 'template'. "
            "Mend it, or start with a chat template of your own."
        ) from error
