"""A PyDataset, whose order each trial goes on with."""

import keras
import numpy as np
from small_study import build_model, study_of

from sweeper import Data


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order = np.arange(4)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full((8, 8), self.order[index], "float32"), np.zeros(8, "int32")

    def on_epoch_end(self):
        np.random.shuffle(self.order)


BATCHES = Batches()


def load_data(trial):
    return Data(train=BATCHES)


study = study_of(build_model, data=load_data)
