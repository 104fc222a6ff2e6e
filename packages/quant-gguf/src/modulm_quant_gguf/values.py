"""Values of whole tensors as float32, in numpy, whatever they are stored as. Not for weights: these stay quantized.

What `gguf` can dequantise, this can. Knows no names; `checkpoint.py` and `config.py` call it.
"""

import numpy as np

from modulm.errors import CheckpointError
from modulm_quant_gguf.ggml_types import GGMLType

_FLOATS = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
DECODABLE = (
    *("F32", "F16", "BF16", "F64", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
    *("MXFP4", "NVFP4"),
)


def float32(rows: np.ndarray, kind: GGMLType, what: str) -> np.ndarray:
    """Return rows uint8 [n, bytes] as float32 [n, elements]; exactly gguf's values.

    Raises `CheckpointError` starting with `what` for a type that `gguf` cannot dequantise.
    """
    if kind.name in _FLOATS:
        return rows.view(_FLOATS[kind.name]).astype(np.float32, copy=False)
    if kind.name == "BF16":
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    import gguf

    try:
        values: np.ndarray = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(kind.number))
    except (NotImplementedError, ValueError) as error:
        raise CheckpointError(
            f"{what} has type {kind.name}, which cannot be decoded. There are: {', '.join(DECODABLE)}."
        ) from error
    return values
