"""The model in memory, in one of two forms: a torch module, or what was recorded of one, now or by an earlier process.

A saved recording needs no torch and no model class: weights are packed as its recipes say. Knows no cache and no step;
`worker.py` asks, `program.py` and `recorded.py` run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np

from modulm import programs
from modulm.config import ModelConfig
from modulm.errors import ModulmError, Unsupported
from modulm.interfaces.attention import AttentionSpec
from modulm.log import logger
from modulm.programs import SavedModel
from modulm.worker.load import TensorSource
from modulm.worker.recorded import Recorded
from modulm.worker.rehearsal import Rehearsal
from modulm.worker.weights import parts_of

_log = logger("worker.model")


@dataclass(kw_only=True)
class LoadedModel:
    """A model with its weights.

    Attributes:
        specs: What each attention layer asks for, in the model's order.
        depends_on_length: Keys are rotated by the length of their sequence, so that a prefix computed for one length
            does not serve another.
        module: The torch module; None where a saved recording stands for it.
        recorded: What native code may run; None where there is none.
        why_eager: The reason for that.
    """

    specs: Mapping[str, AttentionSpec]
    depends_on_length: bool
    module: Any = None
    recorded: Recorded | None = None
    why_eager: str = ""


def load_saved(saved: SavedModel, source: TensorSource) -> LoadedModel:
    """Pack the weights of a saved recording. Raises `CheckpointError` or `Unsupported`."""
    graph = saved.graph
    rehearsal = Rehearsal.of(source)
    source.read_kv_scales(graph.layers)
    for recipe in saved.recipes.values():
        rehearsal.pack(recipe)
    tensors = {
        name: np.frombuffer(saved.tensors[name], np.float32).reshape(value.shape)
        for name, value in graph.tensors.items()
    }
    recorded = Recorded(
        graph=graph,
        weights={name: parts_of(source.pack(recipe)) for name, recipe in saved.recipes.items()},
        tensors=tensors,
    )
    return LoadedModel(specs=graph.layers, depends_on_length=recorded.depends_on_length, recorded=recorded)


def load_torch(
    model_class: type[Any],
    config: ModelConfig,
    source: TensorSource,
    *,
    why_eager: str = "",
    key: str | None = None,
) -> LoadedModel:
    """Build the model's class and fill it; record it too, unless there is a reason not to.

    What was recorded is saved under `key`. Raises `CheckpointError` or `Unsupported`.
    """
    from modulm.worker.program import attention_specs, depends_on_length
    from modulm.worker.trace import trace

    module = load_model(model_class, config, source)
    specs = attention_specs(module)
    loaded = LoadedModel(specs=specs, depends_on_length=depends_on_length(module), module=module, why_eager=why_eager)
    if why_eager:
        return loaded
    try:
        recording = trace(module)
    except Unsupported as error:
        loaded.why_eager = str(error)
        return loaded
    loaded.recorded = recording.to_host()
    recipes = {name: source.recipe(packed) for name, packed in recording.weights.items()}
    if key is not None and None not in recipes.values() and all(starmap(programs.is_kept, source.plain.items())):
        saved = SavedModel(
            config_defaults=getattr(model_class, "config_defaults", {}),
            graph=recording.graph,
            recipes=recipes,  # type: ignore[arg-type]
            tensors={name: array.tobytes() for name, array in loaded.recorded.tensors.items()},
        )
        programs.save(key, saved)
    return loaded


def load_model(model_class: type[Any], config: ModelConfig, source: TensorSource) -> Any:
    """Build the model and fill it. Raises `CheckpointError` or `Unsupported`."""
    import torch

    from modulm.worker.program import attention_specs

    source.check_layers(config)
    with torch.device("meta"), torch.inference_mode():
        model = model_class(config)
    source.read_kv_scales(attention_specs(model))
    unneeded = getattr(model_class, "unneeded_tensors", ())
    with torch.inference_mode():
        try:
            _fill(model, Rehearsal.of(source), unneeded)
        except ModulmError:
            raise
        except Exception as error:  # a layer of somebody else's that computes with what it loads
            _log.debug("Not all tensors were checked before memory was taken: %s", error)
        _fill(model, source, unneeded)
    return model.eval()


def _fill(model: Any, source: TensorSource, unneeded: Sequence[str]) -> None:
    """Let layers load; read what none did: parameters and buffers still without memory, by their own names."""
    import torch

    for name, module in model.named_modules():
        load = getattr(module, "load", None)
        if load is not None:
            load(name, source)
    for module_name, module in model.named_modules():
        places = [(module._parameters, True), (module._buffers, False)]
        for place, is_parameter in places:
            for key, tensor in place.items():
                if tensor is None or not tensor.is_meta:
                    continue
                filled = source.tensor(f"{module_name}.{key}" if module_name else key, tuple(tensor.shape))
                place[key] = torch.nn.Parameter(filled, requires_grad=False) if is_parameter else filled
    source.check_all_used(unneeded)
