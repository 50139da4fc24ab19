"""``at="best"``: a trial's value is its best epoch's, and that epoch's checkpoint is there and stays."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import Runner, network, regression

from sweeper import DefinitionError, Every, Keep, Study
from sweeper.api.collection import collect
from sweeper.checkpoint.reading import read_manifest
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.definition.definition import StudySettings
from sweeper.support.paths import parse_location

CLOCK = Every(seconds=1e6)


def test_the_value_is_the_best_epochs_and_its_checkpoint_is_kept_whatever_is_due(
    run: Runner,
) -> None:
    """The largest loss counts as the best, so that it is the first epoch's."""
    ran = run(
        regression,
        objective="loss",
        direction="maximize",
        at="best",
        checkpoint_every=CLOCK,
        keep=Keep(last=1),
    )
    best = ran.results.best
    values = [e.metrics["loss"] for e in best.epochs]

    assert best.value == max(values) == values[0]
    assert [c.step for c in best.checkpoints] == [8, 32]
    manifest = read_manifest(parse_location(best.checkpoints[0].path))
    assert manifest.metrics["loss"] == best.value


def test_without_it_the_last_epoch_counts_and_nothing_more_is_kept(run: Runner) -> None:
    ran = run(
        regression,
        objective="loss",
        direction="maximize",
        checkpoint_every=CLOCK,
        keep=Keep(last=1),
    )
    best = ran.results.best
    assert best.value == best.epochs[-1].metrics["loss"]
    assert [c.step for c in best.checkpoints] == [32]


def test_every_epoch_that_is_the_best_so_far_ends_with_a_checkpoint(run: Runner) -> None:
    ran = run(
        regression,
        objective="loss",
        at="best",
        checkpoint_every=CLOCK,
        keep=Keep(last=9),
        epochs=4,
    )
    values = [e.metrics["loss"] for e in ran.results.best.epochs]
    improved = [i for i, v in enumerate(values) if all(v < w for w in values[:i])]
    steps = {8 * (i + 1) for i in improved} | {32}
    assert {c.step for c in ran.results.best.checkpoints} == steps


def test_gc_keeps_the_best_epochs_checkpoint_too(run: Runner) -> None:
    ran = run(regression, objective="loss", direction="maximize", at="best", keep=Keep(last=3))
    with Database.open(f"sqlite:///{ran.places['runs_dir']}/sweeper.db", create=False) as database:
        collect(Repository(database), "small", ran.places["runs_dir"], keep=Keep(last=1))
    trial = ran.study.results(**ran.places).trials[0]
    assert [c.step for c in trial.checkpoints] == [8, 32]


def test_it_is_part_of_the_definition_and_its_default_is_not_written_down() -> None:
    def settings(**options: Any) -> StudySettings:
        return Study(
            name="s", model=network, data=lambda _: None, epochs=1, trials=1, threads=1, **options
        ).settings()

    assert "at" not in settings().to_json()
    assert settings(at="best").to_json()["at"] == "best"
    assert StudySettings.from_json(settings(at="best").to_json()) == settings(at="best")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"at": "first"},
            (
                "at='first'; a trial's value is the objective of its weights at the 'end' of "
                "training, or of its 'last' or 'best' epoch"
            ),
        ),
        (
            {"at": "best", "objective": ["a", "b"], "direction": ["minimize", "minimize"]},
            (
                "at='best' with the objectives 'a', 'b': each objective has a different best "
                "epoch; use at='end', or one objective"
            ),
        ),
    ],
)
def test_what_it_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        Study(name="s", model=network, data=lambda _: None, epochs=1, trials=1, **options)
    assert str(raised.value) == said
