"""Components of the process-wide random generators: Keras's, Python's, NumPy's and TensorFlow's.

A capture neither draws from a generator nor creates one.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from sweeper.errors import UncapturableError
from sweeper.train.codec import (
    Json,
    Tensors,
    assign_replicas,
    held_tensors,
    hold_replicas,
    replicas_of,
)
from sweeper.train.codec.form import form_of
from sweeper.train.component import Component
from sweeper.train.randomness.tracing import Trace, TracedFunctions

_WORDS = 624
"""Number of 32-bit words of a Mersenne twister's state in NumPy; Python adds the position."""


class GlobalSeedGenerator(Component):
    """Component of Keras's global seed generator, used by ``keras.random`` calls without a seed.

    There may be two generators. After ``clear_session()`` or ``set_random_seed()`` in a callback,
    the next call creates a new one, while the graph of the training step still uses the variable
    that it was traced with. So the generator that exists when the component is created, just after
    the step was traced, is captured beside the current one. A function that was traced later, such
    as ``predict``'s, would use the new generator when a resumed training traces it again. This is
    refused.

    Args:
        functions: Observer of functions that are traced from now on; None for none.
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
        self._later = [each for each in self._later if each[0]() is not None]
        for _, name, took_in in self._later:
            if took_in is not generator:
                msg = (
                    f"the function {name} was traced with Keras's global seed generator, which "
                    "clear_session() or set_random_seed() has since replaced; a resumed trial "
                    "would trace it with the new one. Pass your own keras.random.SeedGenerator "
                    "to the keras.random call in it"
                )
                raise UncapturableError(msg)

    def capture(self, tensors: Tensors) -> Json:
        generator = global_seed_generator()
        self._refuse_functions_of_another(generator)
        if self._traced is not None:
            hold_replicas(self._traced.state, f"{self.name}/traced", tensors)
        if generator is not None and generator is not self._traced:
            hold_replicas(generator.state, f"{self.name}/state", tensors)
        return {
            "present": generator is not None,
            "traced": self._traced is not None,
            "same": generator is self._traced,
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        from keras.src.backend import random_seed_dtype

        found = []
        if saved["traced"] != (self._traced is not None):
            now, was = ("does not use", "did") if saved["traced"] else ("uses", "did not")
            found.append(
                f"the training step {now} Keras's global seed generator, and {was} when the "
                "checkpoint was written"
            )
        for key in ("traced", "state"):
            if saved["traced"] if key == "traced" else saved["present"] and not saved["same"]:
                found += _misfit(f"{self.name}/{key}", tensors, random_seed_dtype(), (2,))
        return found

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
        set_global_seed_generator(generator)


class PythonRandom(Component):
    """Component of the state of Python's ``random`` module."""

    name = "python_random"

    def capture(self, tensors: Tensors) -> Json:
        return _capture_mersenne(random.getstate(), f"{self.name}/words", tensors)

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved
        return _misfit(f"{self.name}/words", tensors, "uint32", (_WORDS + 1,))

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        random.setstate(_restore_mersenne(saved, f"{self.name}/words", tensors))


class NumpyRandom(Component):
    """Component of the state of NumPy's legacy global generator, ``numpy.random.*``."""

    name = "numpy_random"

    def capture(self, tensors: Tensors) -> Json:
        kind, words, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - what users use
        tensors[f"{self.name}/words"] = np.array(words)
        return {"kind": kind, "position": position, "has_gauss": has_gauss, "cached": cached}

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        del saved
        return _misfit(f"{self.name}/words", tensors, "uint32", (_WORDS,))

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        words = np.asarray(tensors[f"{self.name}/words"], dtype=np.uint32)
        np.random.set_state(  # noqa: NPY002 - what users use
            (saved["kind"], words, saved["position"], saved["has_gauss"], saved["cached"])
        )


class TensorFlowRandom(Component):
    """Component of TensorFlow's global seed and generator, and its generator of seeds for eager ops."""

    name = "tensorflow_random"

    def capture(self, tensors: Tensors) -> Json:
        context = _eager_context()
        generator = getattr(context, "_rng", None)
        shared = _shared_generator()
        if shared is not None:
            hold_replicas(shared.state, f"{self.name}/global", tensors)
        return {
            "seed": getattr(context, "_seed", None),
            "generator": None
            if generator is None
            else _capture_mersenne(generator.getstate(), f"{self.name}/words", tensors),
            "global": None if shared is None else int(shared.algorithm),
        }

    def mismatches(self, saved: Json, tensors: Mapping[str, Any]) -> list[str]:
        found = []
        if saved["generator"] is not None:
            found += _misfit(f"{self.name}/words", tensors, "uint32", (_WORDS + 1,))
        if saved.get("global") is not None:
            found += _misfit(f"{self.name}/global", tensors, "int64", None)
            found += self._of_other_replicas(tensors)
        return found

    def restore(self, saved: Json, tensors: Mapping[str, Any]) -> None:
        import tensorflow as tf

        if saved.get("global") is not None:
            state = tensors[f"{self.name}/global"]
            shared = _shared_generator()
            if shared is not None and tuple(shared.state.shape) == tuple(state.shape):
                assign_replicas(shared.state, f"{self.name}/global", tensors)
            else:
                new = tf.random.Generator.from_state(state, alg=saved["global"])
                tf.random.set_global_generator(new)
        if saved["seed"] is None:
            return
        tf.random.set_seed(saved["seed"])
        if saved["generator"] is not None:
            words = _restore_mersenne(saved["generator"], f"{self.name}/words", tensors)
            _eager_context()._rng.setstate(words)

    def _of_other_replicas(self, tensors: Mapping[str, Any]) -> list[str]:
        key = f"{self.name}/global"
        shared = _shared_generator()
        was = len(held_tensors(key, tensors)) if key in tensors else 1
        now = 1 if shared is None else len(replicas_of(shared.state))
        if was == now or (was == 1 and shared is None):
            return []
        return [
            (
                f"TensorFlow's global generator had a state on {was} replicas when the checkpoint "
                f"was written, and has one on {now} now; call tf.random.get_global_generator() in "
                "the model factory"
            )
        ]


def process_generators() -> tuple[Component, ...]:
    """Return the components of the process-wide generators."""
    return (GlobalSeedGenerator(), PythonRandom(), NumpyRandom(), TensorFlowRandom())


class RecordedState:
    """State of components at the time of construction.

    Args:
        components: In the order in which they are restored.
    """

    def __init__(self, components: Iterable[Component]) -> None:
        self._saved = []
        for component in components:
            tensors: Tensors = {}
            self._saved.append((component, component.capture(tensors), tensors))

    def restore(self) -> None:
        """Restore the recorded state; may be called any number of times."""
        for component, saved, tensors in self._saved:
            component.restore(saved, tensors)


_GLOBAL_SEED_GENERATOR = "global_seed_generator"
"""Key of the generator in Keras's global state; a constant of Keras only from 3.14 on."""


def global_seed_generator() -> Any:
    """Return Keras's global seed generator of this thread; None if it was not used yet."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute(_GLOBAL_SEED_GENERATOR)


def set_global_seed_generator(generator: Any) -> None:
    """Set Keras's global seed generator of this thread; None for one that Keras creates when needed."""
    from keras.src.backend.common import global_state

    global_state.set_global_attribute(_GLOBAL_SEED_GENERATOR, generator)


def _shared_generator() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    return stateful_random_ops.global_generator


def _eager_context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _misfit(
    key: str, tensors: Mapping[str, Any], dtype: str, shape: tuple[int, ...] | None
) -> list[str]:
    """Return the error if the saved tensor ``key`` is missing or has another dtype or shape."""
    if key not in tensors:
        return [f"the tensor {key!r} is missing"]
    was = form_of(tensors[key])
    expected = f"{dtype}{list(tensors[key].shape if shape is None else shape)}"
    return [] if was == expected else [f"the tensor {key!r} is {was}, expected {expected}"]


def _capture_mersenne(state: Any, key: str, tensors: Tensors) -> Json:
    version, words, gauss = state
    tensors[key] = np.array(words, dtype=np.uint32)
    return {"version": version, "gauss": gauss}


def _restore_mersenne(saved: Json, key: str, tensors: Mapping[str, Any]) -> Any:
    return (saved["version"], tuple(int(word) for word in tensors[key]), saved["gauss"])
