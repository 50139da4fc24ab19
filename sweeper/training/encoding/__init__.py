"""Values to JSON beside named tensors, and back: what a checkpoint can hold of objects in Python."""

from sweeper.training.encoding.decoder import Decoder, decode
from sweeper.training.encoding.encoder import Encoder, encode, fingerprint
from sweeper.training.encoding.origins import (
    Json,
    NotPlainError,
    Origins,
    Tensors,
    UnplaceableError,
    hold,
)

__all__ = [
    "Decoder",
    "Encoder",
    "Json",
    "NotPlainError",
    "Origins",
    "Tensors",
    "UnplaceableError",
    "decode",
    "encode",
    "fingerprint",
    "hold",
]
