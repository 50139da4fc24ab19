"""What a trial asks while it runs, answered: the values of its parameters, and whether to end.

The search of one attempt is opened at its first question, when every trial of its window is
finished, and kept: where there is a pruner, the trial asks once an epoch. Unlike what a trial
reports, its questions cannot wait for a database that is away: the trial needs the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sweeper.declared.space import CategoricalChoice
from sweeper.errors import DefinitionError, ParameterError
from sweeper.execution.protocol.questions import Judge, Judged, Suggest, Suggested
from sweeper.execution.worker.study import StudyAccess
from sweeper.execution.worker.write_queue import WriteQueue
from sweeper.records.ancestry import ParentRecord
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import Observation, to_text
from sweeper.storage.repository import Claim


class TrialSearch:
    """Answers the questions of one attempt.

    Args:
        study: The worker's.
        claim: The attempt.
        queue: Through which the database is asked.
        waiting: Called a few times a second while an answer is waited for; what it raises ends
            the waiting.

    Attributes:
        params: The parameters that the trial has so far, those of earlier attempts included.
    """

    def __init__(
        self,
        study: StudyAccess,
        claim: Claim,
        queue: WriteQueue,
        waiting: Callable[[], None],
    ) -> None:
        self.params: dict[str, CategoricalChoice] = dict(claim.params)
        self._study = study
        self._claim = claim
        self._queue = queue
        self._waiting = waiting
        self._opened: SearchSession | None = None

    def answer(self, question: Suggest | Judge) -> Suggested | Judged:
        """Return the answer, once the database has what there is to write or read for it."""
        if isinstance(question, Suggest):
            return self._suggest(question)
        return self._judge(question)

    def not_asked_for(self) -> str | None:
        """What to say of enqueued values that the trial, now that it is built, did not ask for."""
        number, enqueue = self._claim.number, self._study.search.enqueue
        if self._claim.parent is not None:
            return None
        given = enqueue[number] if number < len(enqueue) else {}
        unused = [repr(name) for name in given if name not in self.params]
        if not unused:
            return None
        return (
            f"enqueue[{number}] gives {', '.join(unused)}, which trial {number} did not suggest; "
            f"it suggested {', '.join(map(repr, self.params)) or 'nothing'}"
        )

    def _suggest(self, question: Suggest) -> Suggested:
        """Draw a parameter and keep it, unless an earlier attempt did; return what holds."""
        if self._claim.parent is not None:
            return _of_branch(question, self._claim.parent, self.params)
        try:
            drawn = self._session().suggest(question.name, question.distribution)
        except ParameterError as error:
            return Suggested(None, error=str(error))
        answer = self._queue.ask(lambda _again: self._stored(question, drawn), self._waiting)
        if answer.error is None:
            self.params[question.name] = answer.value
        return answer

    def _judge(self, question: Judge) -> Judged:
        """Return whether the study's pruner ends the trial. What it raises fails the trial.

        At the study's first length, and past it, there is nothing to ask: other trials are seen up
        to there.
        """
        if question.values[-1][0] + 1 >= self._study.settings.epochs:
            return Judged(prune=False)
        try:
            session = self._session()
        except ParameterError as error:
            return Judged(prune=False, error=str(error))
        try:
            return Judged(session.judge(question.values))
        except DefinitionError as error:
            return Judged(prune=False, error=str(error))
        except Exception as error:
            epoch, value = question.values[-1]
            msg = (
                f"the pruner raised {type(error).__name__}: {error}, when it was asked about epoch "
                f"{epoch + 1} with the objective {value}; look at what it was made with"
            )
            return Judged(prune=False, error=msg)

    def _session(self) -> SearchSession:
        if self._opened is None:
            study = self._study
            self._opened = open_search(
                study.search, self._claim.number, self._seen(), study.replayed_attributes
            )
        return self._opened

    def _seen(self) -> tuple[Observation, ...]:
        """The trials that the search may look at."""
        claim, window = self._claim, self._study.search.window
        if window is None:
            return ()
        below = max(0, claim.number - window + 1)
        repository = self._study.impatient
        return self._queue.ask(
            lambda _again: repository.finished_before(claim.study, below), self._waiting
        )

    def _stored(self, question: Suggest, drawn: CategoricalChoice) -> Suggested:
        try:
            return Suggested(
                self._study.impatient.record_parameter(
                    self._claim.token, question.name, question.distribution, drawn
                )
            )
        except ParameterError as error:
            return Suggested(None, error=str(error))


def _of_branch(
    question: Suggest, parent: ParentRecord, params: Mapping[str, CategoricalChoice]
) -> Suggested:
    """A branch's parameters are given; what it asks for must be what its parent asked for."""
    name, distribution = question.name, question.distribution
    stored = parent.distributions.get(name)
    if stored is None or name not in params:
        msg = (
            f"the branch asks for parameter {name!r}, which trial {parent.number} never asked for, so "
            "it has no value: branch without the change that leads there"
        )
        return Suggested(None, error=msg)
    if to_text(stored) != to_text(distribution):
        msg = (
            f"the branch asks for parameter {name!r} as {distribution}, and trial {parent.number} "
            f"asked for it as {stored}; restore the range"
        )
        return Suggested(None, error=msg)
    return Suggested(params[name])
