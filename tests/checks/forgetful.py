"""Studies whose callbacks keep state where no checkpoint finds it, and act by it."""

from __future__ import annotations

from short_trials import PLAIN, UNVALIDATED
from study_files import StudyText

RATES = """
    def slower(self):
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.5
"""
ONCE_AN_EPOCH = StudyText(
    name="library",
    head=f"""
import math


class Decay(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen = math.epochs_seen = getattr(math, "epochs_seen", 0) + 1
        if seen >= 2:
            self.slower()
{RATES}""",
    model=PLAIN,
    data=UNVALIDATED,
    callbacks="Decay()",
    arguments='objective="loss", epochs=6, trials=2, sampler="random"',
)
