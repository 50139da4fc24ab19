"""Components of the process-wide random generators: Keras's, Python's, NumPy's and TensorFlow's.

A capture neither draws from a generator nor creates one.
"""

import random
import secrets
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# The public function would create the global generator by looking for it.
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from sweeper.errors import UncapturableError
from sweeper.train.codec import Json, Tensors, assign_replicas, decode, encode, hold_replicas
from sweeper.train.component import Component
from sweeper.train.randomness.tracing import Trace, TracedFunctions


class GlobalSeedGenerator(Component):
    """Component of Keras's last seed and global seed generator, used by ``keras.random`` calls without a seed.

    There may be two generators. After ``clear_session()`` or ``set_random_seed()`` in a callback,
    the next call creates a new one, while the graph of the training step still uses the variable
    that it was traced with. So the generator that exists when the component is created, just after
    the step was traced, is captured beside the current one. A function that was traced later, such
    as ``predict``'s, would use the new generator when a resumed training traces it again. This is
    refused.
    """

    name = "global_seed_generator"

    def __init__(self, functions: TracedFunctions | None = None) -> None:
        self._traced = global_seed_generator()
        self._later: list[tuple[weakref.ref[Any], str, Any]] = []
        """Graphs traced later with a global generator, the names of their functions, and the generator."""
        if functions is not None:
            functions.on_trace(self._note)

    def _note(self, trace: Trace) -> None:
        generator = global_seed_generator()
        if generator is not None and any(v is generator.state.value for v in trace.variables):
            name = getattr(trace.function, "__qualname__", trace.graph.name)
            self._later.append((weakref.ref(trace.graph), name, generator))

    def _refuse_functions_of_another(self, generator: Any) -> None:
        self._later = [traced for traced in self._later if traced[0]() is not None]
        for _, name, took_in in self._later:
            if took_in is not generator:
                raise UncapturableError(
                    f"the function {name} was traced with Keras's global seed generator, which "
                    "clear_session() or set_random_seed() has since replaced; a resumed trial "
                    "would trace it with the new one. Pass your own keras.random.SeedGenerator "
                    "to the keras.random call in it"
                )

    def capture(self, tensors: Tensors) -> Json:
        generator = global_seed_generator()
        self._refuse_functions_of_another(generator)
        if self._traced is not None:
            hold_replicas(self._traced.state, f"{self.name}/traced", tensors)
        if generator is not None and generator is not self._traced:
            hold_replicas(generator.state, f"{self.name}/state", tensors)
        return {
            "seed": global_state.get_global_attribute(_LAST_SEED),
            "present": generator is not None,
            "traced": self._traced is not None,
            "same": generator is self._traced,
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del tensors
        if saved["traced"] == (self._traced is not None):
            return []
        present, past = ("does not use", "did") if saved["traced"] else ("uses", "did not")
        difference = f"the training step {present} Keras's global seed generator"
        return [f"{difference}, and {past} when the checkpoint was written"]

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        if self._traced is not None:
            assign_replicas(self._traced.state, f"{self.name}/traced", tensors)
        generator = global_seed_generator()
        if saved["same"] or not saved["present"]:
            generator = self._traced if saved["same"] else None
        else:
            if generator is None or generator is self._traced:
                generator = keras.random.SeedGenerator(0)
            assign_replicas(generator.state, f"{self.name}/state", tensors)
        global_state.set_global_attribute(_GLOBAL_SEED_GENERATOR, generator)
        global_state.set_global_attribute(_LAST_SEED, saved["seed"])


class PythonRandom(Component):
    """Component of the state of Python's ``random`` module."""

    name = "python_random"

    def capture(self, tensors: Tensors) -> Json:
        return encode(random.getstate(), f"{self.name}/state", tensors)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        random.setstate(decode(saved, tensors))


class NumpyRandom(Component):
    """Component of the state of NumPy's legacy global generator, ``numpy.random.*``."""

    name = "numpy_random"

    def capture(self, tensors: Tensors) -> Json:
        state = np.random.get_state(legacy=False)  # noqa: NPY002 - what users use
        return encode(state, f"{self.name}/state", tensors)

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        np.random.set_state(decode(saved, tensors))  # noqa: NPY002 - what users use


class TensorFlowRandom(Component):
    """Component of TensorFlow's global seed and generator, and its generator of seeds for eager ops."""

    name = "tensorflow_random"

    def capture(self, tensors: Tensors) -> Json:
        eager = context.context()
        generator = getattr(eager, "_rng", None)
        shared = stateful_random_ops.global_generator
        if shared is not None:
            hold_replicas(shared.state, f"{self.name}/global", tensors)
        return {
            "seed": getattr(eager, "_seed", None),
            "generator": None
            if generator is None
            else encode(generator.getstate(), f"{self.name}/state", tensors),
            "global": None if shared is None else int(shared.algorithm),
        }

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        if saved["global"] is not None:
            state = tensors[f"{self.name}/global"]
            shared = stateful_random_ops.global_generator
            if shared is not None and tuple(shared.state.shape) == tuple(state.shape):
                assign_replicas(shared.state, f"{self.name}/global", tensors)
            else:
                new = tf.random.Generator.from_state(state, alg=saved["global"])
                tf.random.set_global_generator(new)
        if saved["seed"] is None:
            if getattr(context.context(), "_seed", None) is not None:
                # A script without a seed goes on to draw at random. Without any seed its eager operations would
                # raise where operations are deterministic, and with the one that was set since they would repeat.
                drawn = secrets.randbits(31)
                _DRAWN.append(drawn)
                tf.random.set_seed(drawn)
            return
        tf.random.set_seed(saved["seed"])
        if saved["generator"] is not None:
            context.context()._rng.setstate(decode(saved["generator"], tensors))


_DRAWN: list[int] = []
"""Seeds of TensorFlow's that no script has set."""


def seed_of_the_script() -> int | None:
    """Return TensorFlow's global seed, which ``keras.utils.set_random_seed`` sets, too; None if no script has set one."""
    seed = getattr(context.context(), "_seed", None)
    return None if seed is None or seed in _DRAWN else int(seed)


def process_generators(functions: TracedFunctions | None = None) -> tuple[Component, ...]:
    return (GlobalSeedGenerator(functions), PythonRandom(), NumpyRandom(), TensorFlowRandom())


class RecordedState(AbstractContextManager["RecordedState"]):
    """State of components at the time of construction, restored in their order: by `restore`, or when it is left."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._saved = []
        for component in components:
            tensors: Tensors = {}
            self._saved.append((component, component.capture(tensors), tensors))

    def restore(self) -> None:
        for component, saved, tensors in self._saved:
            component.restore(saved, tensors)

    def __exit__(self, *_exception: object) -> None:
        self.restore()


_GLOBAL_SEED_GENERATOR = "global_seed_generator"
"""Key of the generator in Keras's global state; a constant of Keras only from 3.14 on."""

_LAST_SEED = "global_random_seed"


def global_seed_generator() -> Any:
    """Return Keras's global seed generator of this thread; None if it was not used yet."""
    return global_state.get_global_attribute(_GLOBAL_SEED_GENERATOR)
