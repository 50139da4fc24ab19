"""Codec of Python values as JSON and named tensors, for checkpoints."""

from sweeper.inspection.sorts import tells_its_state
from sweeper.train.codec.decoder import Decoder, decode
from sweeper.train.codec.encoder import Encoder, encode, encode_own_state
from sweeper.train.codec.form import (
    TAG,
    Json,
    NotPlainError,
    Tensors,
    UnplaceableError,
    digest_of,
    put_array,
    take_array,
)
from sweeper.train.codec.replicas import (
    assign_replicas,
    held_tensors,
    hold_replicas,
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
    "encode_own_state",
    "held_tensors",
    "hold_replicas",
    "put_array",
    "replicas_of",
    "take_array",
    "tells_its_state",
]
