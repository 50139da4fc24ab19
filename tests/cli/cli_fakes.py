"""A sweep that runs nothing and a database that is a list, so that only the command is tested."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from drawn_studies import made

from sweeper.errors import UnknownStudyError
from sweeper.records.events import Event, StudyOpened
from sweeper.records.results import StudyResults, StudyStatus


@dataclass(frozen=True)
class Answer:
    """What a command line ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        def refuse(constant):
            pytest.fail(f"{constant} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@dataclass
class FakeSweep:
    """Stands where the execution of a sweep does.

    Attributes:
        opens: The study that it opens, if any.
        events: What happens then.
    """

    results: StudyResults
    error: BaseException | None = None
    opens: str | None = "digits"
    events: list[Event] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    def __call__(self, request):
        self.requests.append(request)
        if self.opens is not None:
            request.listener(StudyOpened(StudyStatus(self.opens, 2), 1, request.options.storage))
        for event in self.events:
            request.listener(event)
        if self.error is not None:
            raise self.error
        return self.results


class FakeReader:
    """Reads from studies that were made."""

    def __init__(self, *studies):
        self.studies = {study.status.study: study for study in studies}

    def put(self, *trials):
        """Have the study ``digits`` be of these trials."""
        self.studies["digits"] = made("digits", *trials)

    def status(self, study, *, all_code=False, each=True, where=()):
        if study not in self.studies:
            raise UnknownStudyError(study)
        return self.studies[study].status

    def statuses(self, *, each=True):
        return [study.status for study in self.studies.values()]

    def trial(self, study, number):
        return self.studies[study][number]
