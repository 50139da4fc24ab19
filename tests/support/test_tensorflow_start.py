"""TensorFlow's own start-up lines are held back, and nothing else that is written beside them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.support import tensorflow_start
from sweeper.support.tensorflow_start import look_for_gpus

ROOT = Path(__file__).parents[2]

LOADING = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795407560.270426   21862 port.cc:153] oneDNN custom operations are on.
I0000 00:00:1795407560.386179   21862 cpu_feature_guard.cc:227] This TensorFlow binary is optimized.
To enable the following instructions: AVX2 AVX512F, rebuild TensorFlow.
2024-11-02 10:11:12.131415: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
"""
NEWS = """\
W0000 00:00:1795407560.270426   21862 loader.cc:9] libcudnn has another version
E0000 00:00:1795407560.270426   21862 loader.cc:9] cannot register a factory twice
2024-11-02 10:11:12.131415: W tensorflow/core/util/port.cc:1] libfoo was not found
sitecustomize: hello
"""
NO_GPU = (
    "E0000 00:00:1795407567.128520   21862 cuda_platform.cc:52] failed call to cuInit: INTERNAL\n"
)

STAND_IN = f"""
import os
os.write(2, {(LOADING + NEWS).encode()!r})


class config:
    @staticmethod
    def list_physical_devices():
        os.write(2, {(NO_GPU + NEWS).encode()!r})
"""


@pytest.fixture
def stand_in(tmp_path):
    (tmp_path / "tensorflow.py").write_text(STAND_IN)
    (tmp_path / "keras.py").write_text("import tensorflow\n")
    return tmp_path


def run_text(code, directory, environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": f"{directory}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def said(code, directory, **environment):
    variables = {n: v for n, v in os.environ.items() if n != "TF_CPP_MIN_LOG_LEVEL"}
    return run_text(code, directory, variables | environment).stderr


QUIETLY = """
from sweeper.support.tensorflow_start import loading_quietly
for _ in range(2):
    try:
        with loading_quietly():
            import keras
    except ImportError as error:
        print(error)
"""


TRIAL = """
import os
from sweeper.support.tensorflow_start import import_tensorflow
import_tensorflow()
os.write(2, os.environ["TF_CPP_MIN_LOG_LEVEL"].encode())
"""
LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@pytest.mark.parametrize(
    ("code", "environment", "output"),
    [
        (QUIETLY, {}, NEWS),
        ("import sweeper, keras", {}, LOADING + NEWS),
        (QUIETLY, {LEVEL: "0"}, LOADING + NEWS),
        (TRIAL, {}, NEWS + "1"),
        (TRIAL, {LEVEL: "3"}, NEWS + "3"),
    ],
    ids=["held back", "control", "asked for", "a trial", "a trial with a level of the user's"],
)
def test_a_start_up_line_is_held_back_and_all_else_is_shown(stand_in, code, environment, output):
    assert said(code, stand_in, **environment) == output


def test_a_failed_import_shows_everything_and_may_be_tried_again(stand_in):
    (stand_in / "tensorflow.py").write_text(STAND_IN + "\nraise ImportError('no libcuda')\n")
    assert said(QUIETLY, stand_in) == 2 * (LOADING + NEWS)


@pytest.mark.parametrize("driver", [False, True])
def test_only_where_there_is_no_driver_is_the_missing_gpu_no_news(stand_in, driver, tmp_path):
    file = tmp_path if driver else tmp_path / "none"
    code = f"""
from sweeper.support import tensorflow_start
tensorflow_start._GPU_FILES = ({str(file)!r},)
tensorflow_start.look_for_gpus()
"""
    # With a driver nothing is listed at all: the study's file may yet choose its devices.
    assert said(code, stand_in) == ("" if driver else LOADING + NEWS + NEWS)


def test_a_process_without_a_standard_error_can_start(stand_in):
    code = """
import os
from sweeper.support.tensorflow_start import loading_quietly
os.close(2)
with loading_quietly():
    os.write(1, b'through')
"""
    assert run_text(code, stand_in, os.environ).stdout == "through"


@pytest.mark.whole
@pytest.mark.skipif(
    any(Path(file).exists() for file in tensorflow_start._GPU_FILES), reason="there is a GPU driver"
)
def test_the_real_tensorflow_starts_and_computes_without_a_word(tmp_path):
    code = (
        "from sweeper.support.tensorflow_start import import_tensorflow; import_tensorflow(); "
        "from sweeper.support.tensorflow_start import look_for_gpus; look_for_gpus(); "
        "import tensorflow as tf; assert int(tf.constant(1) + 1) == 2; "
        "tf.get_logger().warning('one that matters')"
    )
    assert said(code, tmp_path).splitlines() == ["WARNING:tensorflow:one that matters"]


def test_listing_devices_starts_nothing_that_a_trial_still_sets():
    from tensorflow.python.eager import context

    handle = context.context()._context_handle
    look_for_gpus()
    assert context.context()._context_handle is handle
