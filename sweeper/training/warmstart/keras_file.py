"""A ``.keras`` file: the weights inside it, and nothing else of it.

The model in it is not built: its configuration may name code, and the study's own factory makes the
model anyway.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from sweeper.errors import WarmStartError
from sweeper.training.warmstart.weights_h5 import HDF5Weights

_WEIGHTS = "model.weights.h5"
_LARGE = 1 << 32
_MOST_EXPANDED = 1000


class KerasFile(HDF5Weights):
    """The weights in a ``.keras`` file.

    Raises:
        WarmStartError: It is no whole ``.keras`` file, or its weights are in another form.
    """

    def __init__(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                if _WEIGHTS not in names:
                    some = ", ".join(names[:6]) or "nothing"
                    msg = (
                        f"the warm start {path} is a zip file with {some}; expected a .keras file "
                        f"with {_WEIGHTS} in it, as model.save('….keras') writes it"
                    )
                    raise WarmStartError(msg)
                info = archive.getinfo(_WEIGHTS)
                if info.file_size > max(_LARGE, _MOST_EXPANDED * info.compress_size):
                    msg = (
                        f"{_WEIGHTS} in {path} claims {info.file_size} bytes, which it cannot hold"
                    )
                    raise WarmStartError(msg)
                content = archive.read(_WEIGHTS)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            msg = (
                f"the warm start {path} is no whole .keras file ({error}); it may have been cut "
                "off: write it again"
            )
            raise WarmStartError(msg) from error
        super().__init__(io.BytesIO(content), str(path))
        self.kind = "Keras model"
