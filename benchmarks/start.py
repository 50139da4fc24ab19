"""Where the time of a short run goes: from Enter to the first step, and from the last step to the prompt.

A study of one trial of one epoch is run by ``sweeper run``, in turn with the same training as a plain
script with ``fit``. What a command prints tells when each phase ends. Printed are the medians of the
phases, the ratios, and the self time of the imports by library::

    python benchmarks/start.py [ROUNDS [PICTURE.svg]]
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ratios import Ratio

HERE = Path(__file__).parent

OURS: Mapping[str, str] = {
    "Python, and the modules of the command": "importing TensorFlow",
    "imports in the fork server: TensorFlow, Keras, the study": "0/1 done",
    "rows of the study and its first trial, claim": "trial 0: starting",
    "fork": "building the model",
    "model: built, compiled, looked at by the guard": "making the data",
    "data, traces of the training and the validation step": "attempt 1 started",
    "first call of the training step": "in epoch 1, at step 1",
    "the epoch's other 44 steps, validation": "epoch 1/1",
    "checkpoint and result": "attempt 1 complete",
    "audit: the interval is trained again from its pinned checkpoint": "1/1 done",
    "end of the process": "",
}
"""The phases of ``sweeper run``, each with what is printed when it is over."""

PLAIN: Mapping[str, str] = {
    "Python": "began",
    "imports: TensorFlow, Keras, scikit-learn": "imported",
    "model: built and compiled": "model",
    "trace, and first call of the training step": "first step",
    "the epoch's other 44 steps, validation with its trace": "epoch",
    "end of the process": "",
}

STUDY = """
from digits import *

study = Study(name="benchmark-start", model=build_model, data=load_data, objective="val_accuracy",
              direction="maximize", epochs=1, trials=1, threads=1)
"""

SCRIPT = """
print("began")
import keras
from digits import BATCH, network, x, x_val, y, y_val
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
print("imported")
model = network(1e-3)
print("model")

class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            print("first step")

model.fit(x, y, batch_size=BATCH, epochs=1, validation_data=(x_val, y_val), verbose=0,
          callbacks=[FirstStep()])
print("epoch")
"""

COLOURS = ("#4878a8", "#e08a3c", "#5f9e6e", "#b55d60", "#857aab", "#8d7866", "#d08fb8", "#8c8c8c")


def phases(words: Sequence[str], ends: Mapping[str, str]) -> list[float]:
    """Run a command, and return the seconds of each phase."""
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    times, wanted = [], [end for end in ends.values() if end]
    for line in process.stdout:
        if wanted and wanted[0] in line:
            times.append(time.perf_counter())
            del wanted[0]
    assert process.wait() == 0
    assert not wanted, f"never printed: {wanted[0]}"
    times.append(time.perf_counter())
    return [after - before for before, after in zip([began, *times], times, strict=False)]


def imports() -> Mapping[str, float]:
    """Return seconds of self time of what a fork server imports, by top-level package."""
    code = "import tensorflow, keras, sweeper.run.trial.run, digits"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = {}
    for own, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", done.stderr):
        package = name.split(".")[0].lstrip("_") or name
        found[package] = found.get(package, 0.0) + int(own) / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def first_step(seconds: Sequence[float], ends: Mapping[str, str], end: str) -> float:
    """Return seconds from Enter to the end of the first step."""
    return sum(seconds[: list(ends.values()).index(end) + 1])


def picture(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Return the phases as bars of one scale, each with a numbered list, in SVG."""
    scale = 700 / max(sum(row.values()) for _, row in rows)
    parts, y = [], 20
    for title, row in rows:
        parts.append(
            f'<text x="10" y="{y}" font-weight="bold">{title}, {sum(row.values()):.2f} s</text>'
        )
        x = 10.0
        for number, seconds in enumerate(row.values()):
            width = seconds * scale
            colour = COLOURS[number % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 8}" width="{width:.1f}" height="26" fill="{colour}"/>'
            )
            if width > 16:
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{y + 26}" fill="#fff" text-anchor="middle">'
                    f"{number + 1}</text>"
                )
            x += width
        y += 52
        for number, (name, seconds) in enumerate(row.items()):
            colour = COLOURS[number % len(COLOURS)]
            parts.append(f'<rect x="10" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
            parts.append(f'<text x="30" y="{y}">{number + 1}. {name}</text>')
            parts.append(f'<text x="710" y="{y}" text-anchor="end">{seconds:.2f} s</text>')
            y += 18
        y += 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {y - 26}" width="720" '
        'font-family="sans-serif" font-size="13" role="img">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measured: dict[str, list[list[float]]] = {"ours": [], "plain": []}
    with tempfile.TemporaryDirectory() as temporary:
        study, script = Path(temporary) / "start_study.py", Path(temporary) / "plain.py"
        study.write_text(STUDY)
        script.write_text(SCRIPT)
        for turn in range(rounds + 1):
            run = ["-m", "sweeper", "run", str(study), "--runs-dir", f"{temporary}/runs-{turn}"]
            ours, plain = phases(run, OURS), phases([str(script)], PLAIN)
            if turn:  # the first fills the disk's cache
                measured["ours"].append(ours)
                measured["plain"].append(plain)
    rows = []
    for key, title, ends in (
        ("plain", "the plain script with fit", PLAIN),
        ("ours", "sweeper run, one trial of one epoch", OURS),
    ):
        medians = [statistics.median(column) for column in zip(*measured[key], strict=True)]
        rows.append((title, dict(zip(ends, medians, strict=True))))
        print(f"{title}: {sum(medians):.2f} s")
        for name, seconds in zip(ends, medians, strict=True):
            print(f"    {seconds:5.2f}  {name}")
    pairs = list(zip(measured["ours"], measured["plain"], strict=True))
    for what, bound, ours, plain in (
        (
            "Enter to the end of the first step",
            1.25,
            [first_step(each, OURS, "in epoch 1, at step 1") for each, _ in pairs],
            [first_step(each, PLAIN, "first step") for _, each in pairs],
        ),
        ("Enter to the prompt", 1.5, [sum(o) for o, _ in pairs], [sum(p) for _, p in pairs]),
    ):
        print(Ratio(f"{what}, against the plain script", ours, plain, "s", bound).line())
    print("self time of imports, by package:")
    for package, seconds in list(imports().items())[:14]:
        print(f"    {seconds:5.2f}  {package}")
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(picture(rows))


if __name__ == "__main__":
    main()
