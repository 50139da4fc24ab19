"""What a trial asks while it runs, answered: the values of its parameters, and whether to end.

The search of one attempt is opened at its first question, when every trial of its window is
finished, and kept: where there is a pruner, the trial asks once an epoch. Unlike what a trial
tells, its questions cannot wait for a database that is away: the trial needs the answers.
"""

from __future__ import annotations

from collections.abc import Callable

from sweeper.errors import DefinitionError, ParameterError
from sweeper.execution.channel import Judge, Judged, Suggest, Suggested
from sweeper.execution.journal import Journal
from sweeper.execution.slots import SlotContext
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import Observation
from sweeper.space import CategoricalChoice
from sweeper.storage.repository import Claim

__all__ = ["TrialSearch"]


class TrialSearch:
    """Answers the questions of one attempt.

    Args:
        context: What the worker's slots share.
        claim: The attempt.
        journal: Through which the database is asked.
        waiting: Called a few times a second while an answer is waited for; what it raises ends
            the waiting.

    Attributes:
        params: The parameters that the trial has so far, those of earlier attempts included.
    """

    def __init__(
        self,
        context: SlotContext,
        claim: Claim,
        journal: Journal,
        waiting: Callable[[], None],
    ) -> None:
        self.params: dict[str, CategoricalChoice] = dict(claim.params)
        self._context = context
        self._claim = claim
        self._journal = journal
        self._waiting = waiting
        self._opened: SearchSession | None = None

    def answer(self, question: Suggest | Judge) -> Suggested | Judged:
        """Return the answer, once the database has what there is to write or read for it."""
        if isinstance(question, Suggest):
            return self._suggest(question)
        return self._judge(question)

    def not_asked_for(self) -> str | None:
        """What to tell of enqueued values that the trial, now that it is built, did not ask for."""
        number, enqueue = self._claim.number, self._context.search.enqueue
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
        try:
            drawn = self._session().suggest(question.name, question.distribution)
        except ParameterError as error:
            return Suggested(None, error=str(error))
        answer = self._journal.ask(lambda _again: self._stored(question, drawn), self._waiting)
        if answer.error is None:
            self.params[question.name] = answer.value
        return answer

    def _judge(self, question: Judge) -> Judged:
        """Return whether the study's pruner ends the trial. What it raises fails the trial."""
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
            told = (
                f"the pruner raised {type(error).__name__}: {error}, when it was asked about epoch "
                f"{epoch} with the objective {value}; look at what it was made with"
            )
            return Judged(prune=False, error=told)

    def _session(self) -> SearchSession:
        if self._opened is None:
            context = self._context
            self._opened = open_search(
                context.search, self._claim.number, self._seen(), context.marks
            )
        return self._opened

    def _seen(self) -> tuple[Observation, ...]:
        """The trials that the search may look at."""
        claim, window = self._claim, self._context.search.window
        if window is None:
            return ()
        below = max(0, claim.number - window + 1)
        repository = self._context.impatient
        return self._journal.ask(
            lambda _again: repository.finished_before(claim.study, below), self._waiting
        )

    def _stored(self, question: Suggest, drawn: CategoricalChoice) -> Suggested:
        try:
            return Suggested(
                self._context.impatient.record_parameter(
                    self._claim.token, question.name, question.distribution, drawn
                )
            )
        except ParameterError as error:
            return Suggested(None, error=str(error))
