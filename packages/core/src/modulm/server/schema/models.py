"""/v1/models, in OpenAI's shape with vLLM's additions."""

import msgspec


class Model(msgspec.Struct, kw_only=True):
    """One name that requests may give."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "modulm"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """All of them, the one that answers report first."""

    object: str = "list"
    data: list[Model]
