"""Requests to stop that a run finds when it begins: it is what they are over for, and no later one.

Importing a study takes seconds, and only then is it known which study a file holds. Whoever asks it
to stop meanwhile means this run. So what is there is forgotten before the import begins, wherever
the study can be known by then, and put back where it turns out to be another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeper.run.launch.sources import describe_source
from sweeper.run.protocol.messages import StudySource

if TYPE_CHECKING:
    from sweeper.db.repository import Repository, StopRequest


class EarlierStops:
    """Forgets the requests to stop of the studies that ``source`` may lead to.

    Args:
        repository: The database.
        source: What is about to be imported.
    """

    def __init__(self, repository: Repository, source: StudySource) -> None:
        self._repository = repository
        self._forgotten: dict[str, StopRequest] = {}
        self._others: dict[str, StopRequest] = {}
        for name in repository.study_names():
            how = repository.stop_requested(name)
            if how is None:
                continue
            if _may_be(repository, name, source):
                repository.clear_stop(name)
                self._forgotten[name] = how
            else:
                self._others[name] = how

    def begin(self, study: str) -> None:
        """Put back every request but that of ``study``, which is started again."""
        known = self._forgotten.pop(study, None)
        # A file that the study was never run from before: all that is known is whether it changed.
        if known is None and self._others.get(study) == self._repository.stop_requested(study):
            self._repository.clear_stop(study)
        self.put_back()

    def put_back(self) -> None:
        """Put back every request that was not made anew, because nothing is started."""
        forgotten, self._forgotten = self._forgotten, {}
        for name, how in forgotten.items():
            if self._repository.stop_requested(name) is None:
                self._repository.request_stop(name, how)


def _may_be(repository: Repository, name: str, source: StudySource) -> bool:
    if source.study is not None:
        return source.study == name
    stored, given = repository.study(name).source or {}, describe_source(source)
    return stored.get("location") == given["location"] and given["name"] in (
        None,
        stored.get("name"),
    )
