"""Private names of Keras and TensorFlow that walks over their objects use.

All walks over a model (the guard's, of the user's state, of variables outside Keras's lists, and of
TensorFlow checkpoints) use these sets. A test compares each name with the installed Keras.
"""

CONNECTIONS = frozenset(
    {
        "_distribute_strategy",
        "_inbound_nodes",
        "_losses",
        "_nodes",
        "_nodes_by_depth",
        "_operations_by_depth",
        "_outbound_nodes",
        "_tracker",
    }
)
"""Attributes that connect and track layers, through which a layer leads to every model that uses it."""

REBUILT = frozenset(
    {
        "_auto_config",
        "_build_shapes_dict",
        "_call_context_args",
        "_call_has_context_arg",
        "_call_signature",
        "_compile_config",
        "_compiled_trainable_state",
        "_distribution_strategy",
        "_functional",
        "_inputs",
        "_inputs_struct",
        "_loss_ids",
        "_losses_override",
        "_outputs",
        "_outputs_struct",
        "_tracked",
        "_trainable_variables_indices",
        "build",
        "call_signature_parameters",
        "quantize",
    }
)
"""Attributes that Keras computes from a layer's arguments and calls."""

OWN = frozenset(
    {
        # Flags, names and specifications of a model or layer.
        "_called",
        "_initial_epoch",
        "_lock",
        "_operations",
        "_parent_path",
        "_path",
        "built",
        "history",
        "stop_evaluating",
        "stop_training",
        # Variables of an optimizer that are also in its list of variables.
        "_accumulated_gradients",
        "_iterations",
        "_learning_rate",
        "_model_variables_moving_average",
        # Attributes that Keras sets on a callback when training starts.
        "_model",
        "params",
    }
)
"""Other attributes of Keras's own without state of the user."""

FUNCTIONS = frozenset({"predict_function", "test_function", "train_function", "training_step"})
"""Functions that Keras traces for a model, and this package's step."""

OPTIMIZER = "optimizer"
"""The optimizer that a model is compiled with."""

COMPILED = frozenset({"_compile_loss", "_compile_metrics", "_loss_tracker"})
"""Attributes that ``compile`` creates from its losses and metrics."""

LAYERS = "_layers"
VARIABLES = "_variables"
LISTS = ("_trainable_variables", "_non_trainable_variables", "_seed_generators", "_metrics")
"""Keras's lists of tracked parts of a model or layer."""

TRACKING_PREFIXES = ("_self_", "_obj_", "_tf_")
"""Prefixes of attributes that Keras's and TensorFlow's automatic tracking adds to an object."""

IN_TF_CHECKPOINTS = frozenset(
    {
        "_optimizer",
        "compiled_loss",
        "compiled_metrics",
        "keras_api",
        "loss_tracker",
        "regularization_losses",
        "trainable_variables",
        "variables",
    }
)
"""Edges in a TensorFlow checkpoint of Keras 2 that lead to no part of the model."""
