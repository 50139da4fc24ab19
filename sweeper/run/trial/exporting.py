"""Export of a model in a process of its own, in which the study's module is imported as in a trial's."""

from __future__ import annotations

from pathlib import Path

from sweeper.checkpoint.reading import load_checkpoint
from sweeper.definition.definition import StudyDefinition
from sweeper.models.rebuilding import ModelBuilder, TrialIdentity
from sweeper.models.writing import ExportJob, export_model
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Assignment, ModelExported, Warned
from sweeper.support.paths import parse_location


def export(definition: StudyDefinition, assignment: Assignment, link: Link) -> None:
    """Write the model that ``assignment`` orders; the last message is `ModelExported`.

    Raises:
        SweeperError: See `export_model`.
    """
    order = assignment.export
    if order is None:
        return

    branch = assignment.branch
    identity = TrialIdentity(
        assignment.study,
        assignment.number,
        assignment.seed,
        Path(assignment.files),
        seeded_as=None if branch is None else branch.seeded_as,
    )
    builder = ModelBuilder(
        definition, identity, link.suggest, lambda message: link.send(Warned(message))
    )
    job = ExportJob(
        form=order.format,
        path=Path(order.path),
        loaded=load_checkpoint(parse_location(order.checkpoint)),
        training=[load_checkpoint(parse_location(path)) for path in order.training],
        card=order.card,
        force=order.force,
        name=order.name,
    )
    link.send(ModelExported(export_model(builder, job)))
