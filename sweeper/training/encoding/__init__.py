"""Values to JSON beside named tensors, and back: what a checkpoint can hold of objects in Python."""

from sweeper.training.encoding.decoder import Decoder, decode
from sweeper.training.encoding.encoder import Encoder, encode
from sweeper.training.encoding.form import (
    TAG,
    Json,
    NotPlainError,
    Tensors,
    UnplaceableError,
    digest_of,
    hold,
)
from sweeper.training.encoding.kinds import tells_its_state
from sweeper.training.encoding.replicas import (
    assign_replicas,
    held_tensors,
    hold_replicas,
    is_replicated,
    replicas_of,
)

__all__ = [
    "TAG",
    "Decoder",
    "Encoder",
    "Json",
    "NotPlainError",
    "Tensors",
    "UnplaceableError",
    "assign_replicas",
    "decode",
    "digest_of",
    "encode",
    "held_tensors",
    "hold",
    "hold_replicas",
    "is_replicated",
    "replicas_of",
    "tells_its_state",
]
