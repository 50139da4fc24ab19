"""Options and arguments that several verbs share, with shell completion and checks of study names.

Completion never prints an error: if anything fails, it offers nothing.
"""

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeper.errors import DefinitionError, StudyImportError, UsageError
from sweeper.support.paths import check_name, is_name

if TYPE_CHECKING:
    from sweeper.db.repository import Repository
    from sweeper.declarations.settings import Settings
    from sweeper.run.options import WorkerOptions
    from sweeper.views.terminal.lines import Verbosity

_PATIENCE = 1.0
"""Seconds to wait for a busy database."""


def complete_study(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of stored studies that start with ``incomplete``."""
    return _completed(context, incomplete, lambda repository: repository.study_names())


def complete_trial(context: typer.Context, incomplete: str) -> list[str]:
    """Return the trial numbers of the study named before that start with ``incomplete``."""
    study = str(context.params.get("study"))
    return _completed(context, incomplete, lambda repository: repository.trial_numbers(study))


def _completed(
    context: typer.Context, incomplete: str, read: Callable[["Repository"], Iterable[object]]
) -> list[str]:
    """Return the words that ``read`` finds in the selected database; none if it fails.

    The options typed so far select the database.
    """
    params = context.params
    flags = Flags(storage=params.get("storage"), runs_dir=params.get("runs_dir"))
    # The shell shows nothing of an error while a word is completed, so there are no words instead.
    with contextlib.suppress(Exception), open_repository(flags.settings(), _PATIENCE) as repository:
        return [word for word in map(str, read(repository)) if word.startswith(incomplete)]
    return []


@contextlib.contextmanager
def open_repository(settings: "Settings", patience: float = 60.0) -> Iterator["Repository"]:
    """Open the existing database of ``settings``, and close it afterwards."""
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with Database.open(settings.storage, create=False, patience=patience) as database:
        yield Repository(database)


def study_name(text: str) -> str:
    """Return ``text`` if it can be a study's name; refuse it, or a study's file."""
    path = Path(text)
    if path.suffix == ".py" or (path.parent != Path() and path.is_file()):
        raise typer.BadParameter(_file_not_name(path))
    try:
        return check_name(text)
    except DefinitionError as error:
        raise typer.BadParameter(str(error)) from None


def stored_hint(source: str, settings: "Settings") -> str:
    """Return a hint for a stored study whose name was typed instead of a file; empty if there is none.

    It is appended to another error, so errors here are ignored.
    """
    from sweeper.db.peek import stored_names

    names: tuple[str, ...] | None = ()
    if is_name(source):
        names = stored_names(settings.storage)
    if names is None:
        # The names only improve a message that is given anyway.
        with contextlib.suppress(Exception), open_repository(settings, _PATIENCE) as repository:
            names = repository.study_names()
    near = difflib.get_close_matches(source, names or (), n=1)
    if not near:
        return ""
    match = "has a study of this name" if near[0] == source else f"has a study {near[0]!r}"
    return f"; the database {match}, which `{settings.command('resume', near[0])}` resumes"


def _file_not_name(path: Path) -> str:
    names = _names_in(path)
    if names:
        hint = f"it defines {' and '.join(map(repr, names))}: use that name"
    else:
        hint = "`sweeper ls` lists the studies that are stored"
    appearance = "is a file" if path.is_file() else "looks like a file"
    return f"{str(path)!r} {appearance}, and a study's name was expected; {hint}"


def _names_in(path: Path) -> list[str]:
    """Return the names of the studies that a file declares; the file is not run."""
    from sweeper.definition.declared import DeclaringFile

    try:
        names = [study.literals.get("name") for study in DeclaringFile(path).studies()]
    except (OSError, StudyImportError):
        return []
    return [name for name in names if isinstance(name, str)]


Verb = Callable[..., None]
"""A function with typer's annotations. Its name is the verb, its docstring the help."""


@dataclass
class Invocation:
    """Settings of one command line beyond its verb's own options."""

    debug: bool = False


def _set_debug(context: typer.Context, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).debug = True


def option(name: str, metavar: str, help: str, **more: Any) -> Any:  # noqa: A002 - as typer calls it
    """Return an option with a value, whose help contains its default in words."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False, **more)


def flag(*names: str, help: str) -> Any:  # noqa: A002 - as typer calls it
    """Return an option without a value."""
    return typer.Option(*names, metavar="", help=help)


StudyFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:NAME]",
        help="A Python file or module, and the study's variable if it holds several.",
        show_default=False,
    ),
]
MovedFile = Annotated[
    str | None,
    option("--source", "FILE[:NAME]", "The study's file on this machine, if it has moved."),
]
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        parser=study_name,
        help="The study's name.",
        autocompletion=complete_study,
    ),
]
TRIAL_NUMBER = typer.Argument(
    metavar="N",
    min=0,
    help="The trial's number, from 0.",
    show_default=False,
    autocompletion=complete_trial,
)
TrialNumber = Annotated[int, TRIAL_NUMBER]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Print the traceback of an unexpected error. (env: SWEEPER_DEBUG)",
        metavar="",
        callback=_set_debug,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Options that several verbs share, in the order of the help; None for the settings' value.

    Raises:
        UsageError: Two of them contradict each other.
    """

    workers: Annotated[
        int | None,
        option(
            "--workers",
            "N",
            "Trials side by side. (default: one per core; env: SWEEPER_WORKERS)",
            min=1,
        ),
    ] = None
    trials: Annotated[
        int | None,
        option("--trials", "N", "Total number of trials, instead of the study's own.", min=1),
    ] = None
    epochs: Annotated[
        int | None,
        option(
            "--epochs",
            "N",
            "Total number of epochs of each trial, finished trials included.",
            min=1,
        ),
    ] = None
    engine: Annotated[
        str | None,
        option(
            "--engine", "local|dask|ray", "Where workers run. (default: local; env: SWEEPER_ENGINE)"
        ),
    ] = None
    engine_address: Annotated[
        str | None,
        option(
            "--engine-address",
            "URL",
            "The cluster. (default: one on this machine; env: SWEEPER_ENGINE_ADDRESS)",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        option("--gpus", "all|0,1", "Bind each slot to one of these GPUs. (env: SWEEPER_GPUS)"),
    ] = None
    trials_per_gpu: Annotated[
        int | None,
        option(
            "--trials-per-gpu",
            "N",
            "Trials side by side on a GPU, which share its memory. (default: 1)",
            min=1,
        ),
    ] = None
    gpu_memory: Annotated[
        int | None,
        option(
            "--gpu-memory", "MB", "GPU memory of one trial. (default: an equal share of 90%)", min=1
        ),
    ] = None
    fail_fast: Annotated[
        bool,
        flag("--fail-fast", help="Stop with an error as soon as a trial fails."),
    ] = False
    grace: Annotated[
        float | None,
        option(
            "--grace",
            "SECONDS",
            "Seconds after SIGTERM, or the study's time limit, in which trials finish their step and "
            "checkpoint. (default: no limit; of `sweeper worker` and the time limit: 30)",
            min=0,
        ),
    ] = None
    isolation: Annotated[
        str | None,
        option(
            "--isolation",
            "auto|fork|spawn|inline",
            "How trial processes are started. (default: auto; env: SWEEPER_ISOLATION)",
        ),
    ] = None
    accept_inexact: Annotated[
        bool,
        flag(
            "--accept-inexact",
            help="Continue although an audit found a difference; status, show and best say so.",
        ),
    ] = False
    accept_changes: Annotated[
        bool,
        flag(
            "--accept-changes",
            help="Continue although the definition or code has changed; earlier trials are ranked apart.",
        ),
    ] = False
    fresh: Annotated[
        bool,
        flag("--fresh", help="Begin a new study; the existing one is renamed NAME~1."),
    ] = False
    quiet: Annotated[
        bool,
        flag("-q", "--quiet", help="Print only problems, on standard error."),
    ] = False
    verbose: Annotated[
        bool,
        flag("-v", "--verbose", help="Print every epoch and checkpoint, too."),
    ] = False
    as_json: Annotated[
        bool,
        flag("--json", help="Print one JSON value (NaN and infinities as null)."),
    ] = False
    as_csv: Annotated[
        bool,
        flag("--csv", help="Print CSV, with a header (epochs from 0, as in JSON)."),
    ] = False
    storage: Annotated[
        str | None,
        option(
            "--storage",
            "URL",
            "The database. (default: sqlite:///runs/sweeper.db; env: SWEEPER_STORAGE)",
        ),
    ] = None
    runs_dir: Annotated[
        Path | None,
        option(
            "--runs-dir", "PATH", "Directory of all files. (default: runs; env: SWEEPER_RUNS_DIR)"
        ),
    ] = None
    checkpoints: Annotated[
        str | None,
        option(
            "--checkpoints",
            "PATH|URL",
            "Directory or URL of checkpoints, such as s3://bucket/prefix. "
            "(default: the runs directory; env: SWEEPER_CHECKPOINTS)",
        ),
    ] = None

    debug: Debug = False

    def __post_init__(self) -> None:
        contradicting = {
            "--json and --csv": self.as_json and self.as_csv,
            "--quiet and --verbose": self.quiet and self.verbose,
        }
        for names, both in contradicting.items():
            if both:
                raise UsageError(f"{names} were both given; give one of them")

    def settings(self) -> "Settings":
        """Return the settings resolved from options, environment and file."""
        from sweeper.declarations.settings import Settings, load_settings

        return load_settings(
            **{name: value for name, value in vars(self).items() if name in Settings.model_fields}
        )

    @property
    def verbosity(self) -> "Verbosity":
        if self.quiet:
            return "quiet"
        return "verbose" if self.verbose else "normal"

    def worker_options(self, settings: "Settings", slots: int | None) -> "WorkerOptions":
        """Return the options of a worker: the settings and the options of this command."""
        from sweeper.run.options import WorkerOptions

        return WorkerOptions.resolved(
            settings,
            slots=slots,
            gpu_memory=self.gpu_memory,
            grace=self.grace,
            fail_fast=self.fail_fast,
            accept_inexact=self.accept_inexact,
        )


READING = "as_json as_csv storage runs_dir"
"""Options of a verb that reads."""

RUNNING = (
    "workers trials epochs engine engine_address gpus trials_per_gpu gpu_memory fail_fast grace isolation "
    "accept_inexact accept_changes fresh quiet verbose as_json storage runs_dir checkpoints"
)
"""Options of a verb that runs a study."""


def expanded(only: str = "", *, without: str = "") -> Callable[[Verb], Verb]:
    """Give a verb for typer the options of its parameter ``flags``, if it has one, and ``--debug``.

    Args:
        only: Names of fields in the order of the help. Other fields keep their defaults.
        without: Names among them that are not options of the verb.
    """
    names = [name for name in only.split() if name not in without.split()]

    def expand(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        parameters = [
            parameter for parameter in signature.parameters.values() if parameter.name != "flags"
        ]
        flag_fields = {field.name: field for field in fields(Flags)}
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=flag_fields[name].default,
                annotation=flag_fields[name].type,
            )
            for name in [*names, "debug"]
        ]

        @functools.wraps(verb)
        def call(*, debug: bool, **values: Any) -> None:
            del debug
            flags = Flags(**{name: values.pop(name) for name in names})
            verb(**values, **({"flags": flags} if names else {}))

        call.__signature__ = signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
        return call

    return expand
