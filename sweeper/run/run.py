"""Run of a study: preparation, trials here or on a cluster, and results."""

from dataclasses import replace

from sweeper.records.events import Notice, OneAtATime
from sweeper.records.results import StudyResults
from sweeper.run.options import RunRequest
from sweeper.run.prepared_study import prepare
from sweeper.run.signals import early_termination
from sweeper.support.paths import RemotePath
from sweeper.support.versions import Environment


def run_sweep(request: RunRequest) -> StudyResults:
    """Run or resume a study to its total, and return all its results.

    Raises:
        Interrupted: A signal, a request to stop, or the study's time limit; every trial is
            checkpointed and can be resumed.
    """
    options = request.options
    if request.engine != "local" or request.engine_address is not None:
        from sweeper.run.cluster.engines import check_engine

        check_engine(request.engine, isolation=options.isolation, address=request.engine_address)
    if isinstance(options.checkpoints, RemotePath):
        from sweeper.checkpoint.remote_objects import check_checkpoints_location

        check_checkpoints_location(options.checkpoints, options.isolation)
    request = replace(request, listener=OneAtATime(request.listener))
    if not Environment.current().tested:
        from sweeper.run.self_test import prove_environment

        prove_environment(
            lambda text: request.listener(Notice(text)), accept=options.accept_inexact
        )
    with early_termination(), prepare(request) as prepared:
        if request.engine != "local":
            from sweeper.run.cluster.driver import drive

            status = drive(prepared, request)
        else:
            from sweeper.run.serving import serve_slots

            status = serve_slots(
                prepared, options, request.listener, resume_command=request.resume_command
            )
        return StudyResults(status, prepared.study.repository.trials(prepared.study.settings.name))
