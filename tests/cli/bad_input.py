"""Every bad input of the command line, and the whole message that it ends with: read it as a list.

Each message says what was seen, what was expected, and what to do next. ``HERE`` stands for the
directory that the command is typed in.
"""

from __future__ import annotations

from dataclasses import dataclass

NONE_CAN_SUCCEED = "error: trial 0 shows that no trial of the study can succeed: "
CORRECT_IT = (
    ". No other trial was started. Fix the study and run it again: then this trial and the "
    "others begin. `sweeper logs line 0` has the trial's output"
)


@dataclass(frozen=True)
class BadInput:
    """One bad input.

    Attributes:
        words: What is typed after ``sweeper``.
        message: The whole of what is answered, without the lines on usage.
        code: The exit code.
        given: What is there: a set-up of the test's.
    """

    words: str
    message: str
    code: int
    given: str = "nothing"


BAD_INPUTS: tuple[BadInput, ...] = (
    BadInput(
        "status digits",
        "error: there is no database at sqlite:///runs/sweeper.db; run a study first "
        "(sweeper run FILE), or name its database (--storage, SWEEPER_STORAGE)",
        1,
    ),
    BadInput(
        "status ../digits",
        "Invalid value for 'STUDY': '../digits' cannot be a study's name: it becomes a "
        "directory, so use 1 to 100 letters, digits, '.', '_' or '-', starting with a "
        "letter or digit and not ending with '.'",
        2,
    ),
    BadInput(
        "status",
        "Missing argument 'STUDY'. The study's name.",
        2,
    ),
    BadInput(
        "statsu digits",
        "No such command 'statsu'. Did you mean 'status'?",
        2,
    ),
    BadInput(
        "ls --jsno",
        "No such option: --jsno (Possible options: --json)",
        2,
    ),
    BadInput(
        "ls --json --csv",
        "error: --json and --csv were both given; give one of them",
        2,
    ),
    BadInput(
        "ls --storage runs/sweeper.db",
        "error: --storage: found 'runs/sweeper.db' (no '://' in it; for a SQLite file write "
        "sqlite:///runs/sweeper.db); expected a database URL such as sqlite:///runs/sweeper.db "
        "or postgresql://host/name",
        2,
    ),
    BadInput(
        "ls --storage mysql://me:secret@host/x",
        "error: mysql://me:***@host/x is a mysql database; sweeper keeps studies in "
        "sqlite:/// or postgresql://",
        1,
    ),
    BadInput(
        "ls --storage sqlite://",
        "error: sqlite:// names no file, and a database in memory is lost with its "
        "process; use sqlite:///PATH",
        1,
    ),
    BadInput(
        "ls --runs-dir s3://bucket",
        "error: --runs-dir: found 's3:/bucket' (a URL is not a directory: use --storage for a "
        "database's URL, --checkpoints for a bucket's); expected a directory's path",
        2,
    ),
    BadInput(
        "status digits",
        "error: there is no database at sqlite:///runs/sweeper.db; there is one in "
        "HERE: go there (cd HERE), or name it (--storage, SWEEPER_STORAGE)",
        1,
        "a study in the directory above",
    ),
    BadInput(
        "ls",
        "error: there is no database at sqlite:///runs/sweeper.db; there is one in "
        "HERE/project: go there (cd HERE/project), or name it (--storage, "
        "SWEEPER_STORAGE)",
        1,
        "a study in a directory below",
    ),
    BadInput(
        "show digits 0",
        "error: there is no database at sqlite:///runs/sweeper.db; run a study first "
        "(sweeper run FILE), or name its database (--storage, SWEEPER_STORAGE)",
        1,
        "a study whose database is gone",
    ),
    BadInput(
        "ls --storage sqlite:///notes.db",
        "error: the database sqlite:///notes.db cannot be opened: file is not a "
        "database; check --storage (SWEEPER_STORAGE), the file's permissions or the "
        "server",
        1,
        "no database",
    ),
    BadInput(
        "ls",
        "error: sqlite:///runs/sweeper.db has tables of revision 9999, which this "
        "version of sweeper does not know (its newest is NEWEST); install the newer "
        "sweeper that wrote it, or use another database",
        1,
        "a newer database",
    ),
    BadInput(
        "ls",
        "error: sweeper.toml: worker: there is no setting of that name; did you mean 'workers'?",
        2,
        "an unknown setting",
    ),
    BadInput(
        "ls",
        "error: sweeper.toml: workers: found 'three'; expected a whole number, at least 1",
        2,
        "an impossible setting",
    ),
    BadInput(
        "ls",
        "error: sweeper.toml: not valid TOML: Invalid value (at end of document); "
        "correct it or move it away",
        2,
        "settings that are no TOML",
    ),
    BadInput(
        "status digitz",
        "error: the database has no study 'digitz'; did you mean 'digits'?",
        2,
        "a study",
    ),
    BadInput(
        "status letters",
        "error: the database has no study 'letters'; it has 'digits'",
        2,
        "a study",
    ),
    BadInput(
        "show digits",
        "Missing argument 'N'. The trial's number, from 0.",
        2,
        "a study",
    ),
    BadInput(
        "show digits 7",
        "error: study 'digits' has no trial 7; it has trial 0 (of 3), which `sweeper "
        "status digits` lists",
        2,
        "a study",
    ),
    BadInput(
        "show digits x",
        "Invalid value for 'N': found 'x'; expected a whole number",
        2,
        "a study",
    ),
    BadInput(
        "show digits ../0",
        "Invalid value for 'N': found '../0'; expected a whole number",
        2,
        "a study",
    ),
    BadInput(
        "best digits",
        "error: study 'digits' has no complete trial yet: 1 of 3 failed, the first with: "
        "ValueError: no such layer. No trial is the best one; see `sweeper resume digits` or "
        "`sweeper retry digits --failed`",
        1,
        "a study",
    ),
    BadInput(
        "compare digits 0",
        "error: 0 names one trial; name two or more, as in `sweeper compare digits 0 "
        "1`, or `sweeper compare digits 0 OTHER:0`",
        2,
        "a study",
    ),
    BadInput(
        "compare digits 0 7",
        "error: study 'digits' has no trial 7; it has trial 0 (of 3), which `sweeper "
        "status digits` lists",
        2,
        "a study",
    ),
    BadInput(
        "compare digits 0 ../x:1",
        "Invalid value for N|STUDY:N: '../x' cannot be a study's name: it becomes a "
        "directory, so use 1 to 100 letters, digits, '.', '_' or '-', starting with a "
        "letter or digit and not ending with '.'",
        2,
        "a study",
    ),
    BadInput(
        "compare digits 0 x",
        (
            "Invalid value for N|STUDY:N: 'x' is not a trial; expected its number from 0, or "
            "STUDY:NUMBER"
        ),
        2,
        "a study",
    ),
    BadInput(
        "logs digits 0",
        "error: the log runs/digits/trial-00000/attempt-01/log.txt of attempt 1 cannot be "
        "read: No such file or directory; it ran on this machine: give the --runs-dir of that "
        "run. A trial that ran inline has no log, because it printed to its terminal",
        1,
        "a study",
    ),
    BadInput(
        "retry digits",
        "error: give the number of a trial, or --failed for every one that has failed",
        2,
        "a study",
    ),
    BadInput(
        "retry digits 5",
        "error: study 'digits' has no trial 5; it has trial 0 (of 3), which `sweeper "
        "status digits` lists",
        2,
        "a study",
    ),
    BadInput(
        "stop letters",
        "error: the database has no study 'letters'; it has 'digits'",
        2,
        "a study",
    ),
    BadInput(
        "gc letters",
        "error: the database has no study 'letters'; it has 'digits'",
        2,
        "a study",
    ),
    BadInput(
        "rm letters",
        "error: the database has no study 'letters'; it has 'digits'",
        2,
        "a study",
    ),
    BadInput(
        "worker letters",
        "error: the database has no study 'letters'; it has 'digits'",
        2,
        "a study",
    ),
    BadInput(
        "evaluate letters",
        "error: the database has no study 'letters'; it has 'digits'",
        2,
        "a study",
    ),
    BadInput(
        "verify digits",
        "error: study 'digits' has no complete trial yet: 1 of 3 failed, the first with: "
        "ValueError: no such layer. So there is no best trial; name one with --trial N, or verify all "
        "with --all",
        1,
        "a study",
    ),
    BadInput(
        "verify digits --trial 0",
        "error: trial 0 of study 'digits' failed, so it has no result to compare; "
        "`sweeper retry` gives it another attempt",
        1,
        "a study",
    ),
    BadInput(
        "export digits --format keras",
        "Missing option '--output'. File or directory to write; PATH.json and PATH.md describe it.",
        2,
        "a study",
    ),
    BadInput(
        "export digits --format kears --output x.keras",
        "error: 'kears' is not an export format; use one of keras, "
        "weights, savedmodel, frozen, tf-checkpoint, safetensors",
        2,
        "a study",
    ),
    BadInput(
        "export digits --format keras --output x.h5",
        "error: --format keras writes a file that ends with .keras; the path is x.h5",
        2,
        "a study",
    ),
    BadInput(
        "export digits --format keras --output x.keras",
        "error: study 'digits' has no best trial; name one with --trial N",
        1,
        "a study",
    ),
    BadInput(
        "db copy sqlite:///runs/sweeper.db sqlite:///runs/sweeper.db",
        "error: sqlite:///runs/sweeper.db already contains studies (digits); copy into an "
        "empty database",
        1,
        "a study",
    ),
    BadInput(
        "run",
        "Missing argument 'FILE[:NAME]'. A Python file or module, and the study's variable if it holds "
        "several.",
        2,
    ),
    BadInput(
        "run digits",
        "error: there is neither a file nor a module called 'digits'; give the Python "
        "file that defines the study, or FILE:NAME; the database has a study of this "
        "name, which `sweeper resume digits` resumes",
        2,
        "a study",
    ),
    BadInput(
        "run digitz",
        "error: there is neither a file nor a module called 'digitz'; give the Python "
        "file that defines the study, or FILE:NAME; the database has a study 'digits', "
        "which `sweeper resume digits` resumes",
        2,
        "a study",
    ),
    BadInput(
        "status sweep.py",
        "Invalid value for 'STUDY': 'sweep.py' is a file, and a study's name was "
        "expected; it defines 'line': use that name",
        2,
        "a study and files",
    ),
    BadInput(
        "db upgrad",
        "No such command 'upgrad'. Did you mean 'upgrade'?",
        2,
    ),
    BadInput(
        "db upgrade",
        "error: there is no database at sqlite:///runs/sweeper.db; run a study first "
        "(sweeper run FILE), or name its database (--storage, SWEEPER_STORAGE)",
        1,
    ),
    BadInput(
        "dashboard --port 99999999",
        "Invalid value for '--port': found '99999999'; expected at most 65535",
        2,
    ),
    BadInput(
        "run seep.py",
        "error: seep.py does not exist; did you mean sweep.py?",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py",
        "error: sweep.py does not exist; give the Python file that defines the study",
        2,
    ),
    BadInput(
        "run no.such.module",
        "error: there is neither a file nor a module called 'no.such.module'; give the "
        "Python file that defines the study, or FILE:NAME",
        2,
    ),
    BadInput(
        "run a/b",
        "error: there is no file a/b; give the Python file that defines the study",
        2,
    ),
    BadInput(
        "run sweep.py --workers 0",
        "Invalid value for '--workers': found '0'; expected at least 1",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --workers x",
        "Invalid value for '--workers': found 'x'; expected a whole number",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --grace x",
        "Invalid value for '--grace': found 'x'; expected a number",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --engine lokal",
        "error: --engine: found 'lokal'; expected local, dask or ray",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --isolation frok",
        "error: --isolation: found 'frok'; expected auto, fork, spawn or inline",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --gpus 0",
        "error: --gpus 0: no GPU was found here (neither nvidia-smi nor rocm-smi names one, "
        "CUDA_VISIBLE_DEVICES has no id, and /dev has neither nvidia0 nor kfd); leave --gpus "
        "out to train on the CPU, or use a machine with a GPU",
        2,
        "files",
    ),
    BadInput(
        "worker digits --gpus 0",
        "error: --gpus 0: no GPU was found here (neither nvidia-smi nor rocm-smi names one, "
        "CUDA_VISIBLE_DEVICES has no id, and /dev has neither nvidia0 nor kfd); leave --gpus "
        "out to train on the CPU, or use a machine with a GPU",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --gpus 0,0",
        "error: --gpus 0,0: give ids with commas between, each once, such as 0,1; or all",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py --checkpoints ftp://x/y",
        "error: --checkpoints: found 'ftp://x/y' ('ftp://x/y' is in none of the known object "
        "stores (s3://, gs://, memory://)); expected a directory's path, or a URL such as "
        "s3://bucket/prefix",
        2,
        "files",
    ),
    BadInput(
        "init sweep.py",
        "error: sweep.py already exists; name another file, or overwrite it with --force",
        2,
        "files",
    ),
    BadInput(
        "init notes.txt",
        "error: 'notes.txt' does not end in .py, as a study's file must; try notes.txt.py",
        2,
    ),
    BadInput(
        "init --template torch",
        "error: --template torch: there is no such template; expected arrays, tf-data, step",
        2,
    ),
    BadInput(
        "run empty.py",
        "error: empty.py holds no study; write `study = sweeper.Study(…)` at its top level",
        2,
        "files",
    ),
    BadInput(
        "run two.py",
        "error: two.py holds 2 studies; name one: two.py:study or two.py:other",
        2,
        "files",
    ),
    BadInput(
        "run sweep.py:stdy",
        "error: sweep.py has nothing under the name 'stdy'; expected a sweeper.Study; it holds study ('line')",
        2,
        "files",
    ),
    BadInput(
        "run broken.py",
        "error: importing broken.py raised AttributeError: 'int' object has no "
        "attribute 'colour' (HERE/broken.py, line 2); correct it, and type the command "
        "again",
        1,
        "files",
    ),
    BadInput(
        "run package.py",
        "error: importing package.py raised ModuleNotFoundError: No module named "
        "'a_package_that_is_nowhere' (HERE/package.py, line 1); the package "
        "'a_package_that_is_nowhere' is not installed: install it, and type the command "
        "again",
        1,
        "files",
    ),
    BadInput(
        "run syntax.py",
        "error: importing syntax.py raised SyntaxError: '(' was never closed "
        "(HERE/syntax.py, line 1); correct it, and type the command again",
        1,
        "files",
    ),
    BadInput(
        "run argument.py",
        "error: Study(…) got an unknown argument 'epoch'; did you mean 'epochs'? "
        "(HERE/argument.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run value.py",
        "error: epochs=0; it must be a whole number, at least 1 (HERE/value.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run name.py",
        "error: '../line' cannot be a study's name: it becomes a directory, so use 1 to"
        " 100 letters, digits, '.', '_' or '-', starting with a letter or digit and not"
        " ending with '.' (HERE/name.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run rungs.py",
        "error: budget=Halving(min_epochs=0, factor=3, brackets=1): min_epochs is 0; give a whole "
        "number, at least 1 (HERE/rungs.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run factor.py",
        "error: budget=Hyperband(min_epochs=1, factor=1): factor is 1; give a whole number, at "
        "least 2 (HERE/factor.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run brackets.py",
        "error: budget=Halving(min_epochs=1, factor=3, brackets=5) with epochs=9: only 3 brackets "
        "fit, the last of which has no rung; give at most brackets=3, or sweeper.Hyperband for "
        "all (HERE/brackets.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run late.py",
        "error: budget=Hyperband(min_epochs=9, factor=3) with epochs=9: the first rung is after 9 "
        "epochs, so no trial would ever pause; give fewer min_epochs than epochs (HERE/late.py, "
        "line 14)",
        1,
        "files",
    ),
    BadInput(
        "run budget.py",
        "error: budget=9 is not a budget; give an object, such as "
        "sweeper.Halving(min_epochs=1, factor=3) (HERE/budget.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run pruned.py",
        "error: budget=Halving(min_epochs=1, factor=3, brackets=1) together with "
        "pruner=NopPruner: both end trials early; give one of them (HERE/pruned.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run unreported.py",
        NONE_CAN_SUCCEED
        + "ObjectiveError: trials are compared by 'val_loss' after 1 and 3 epochs, "
        "and with validation_freq=2 there is no validation then; leave "
        "validation_freq out, or choose the budget's min_epochs and factor so "
        "that each rung follows an epoch with validation" + CORRECT_IT,
        1,
        "files",
    ),
    BadInput(
        "run keep.py",
        "error: keep=3; give a sweeper.Keep, such as Keep(last=3) (HERE/keep.py, line 14)",
        1,
        "files",
    ),
    BadInput(
        "run uncompiled.py",
        NONE_CAN_SUCCEED + "FactoryError: the model factory returned Sequential "
        "'sequential', which is not compiled; call model.compile(optimizer=…, loss=…) "
        "before returning it" + CORRECT_IT,
        1,
        "files",
    ),
    BadInput(
        "run metric.py",
        NONE_CAN_SUCCEED + "ObjectiveError: the model does not report the objective 'val_acuracy', "
        "and Data(validation=…) is not given; it reports 'loss': name one of "
        "these" + CORRECT_IT,
        1,
        "files",
    ),
    BadInput(
        "run nothing.py",
        NONE_CAN_SUCCEED + "FactoryError: the model factory build_model returned None; "
        "expected a compiled keras.Model (does it end with `return model`?)" + CORRECT_IT,
        1,
        "files",
    ),
    BadInput(
        "run lengths.py",
        "trial 0 failed: DataError: the arrays of Data(train=…) have different numbers of "
        "samples: train[0] has 8, train[1] has 7; the numbers must be equal sweeper show line 0",
        3,
        "files",
    ),
    BadInput(
        "run sweep.py",
        "error: trial 0 had to stop, and can be resumed: CheckpointError: the "
        "checkpoint of step 2 cannot be written to "
        "HERE/runs/line/trial-00000/attempt-01/checkpoints: [Errno 28] No space left on"
        " device. It needs about SOME bytes, and SOME bytes are free; free some"
        " space (sweeper gc), keep fewer checkpoints, or move the runs directory",
        1,
        "a full disk",
    ),
    BadInput(
        "export line --format weights --output x.weights.h5 --at 2",
        "error: HERE/runs/line/trial-00000/attempt-01/checkpoints/step-000000002/tensors.safetensors "
        "is damaged: bytes 4088, expected 8176; `sweeper show line 0` lists the trial's checkpoints: "
        "take another one with --at",
        1,
        "a study whose checkpoint is torn",
    ),
    BadInput(
        "extend digits --epochs two",
        "Invalid value for '--epochs': found 'two'; expected a whole number",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 0",
        "Invalid value for '--epochs': found '0'; expected at least 1",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits",
        "Missing option '--epochs'. Total number of epochs, finished ones included.",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 2",
        "error: --epochs 2 for study 'digits', whose trials train for 3 epochs (1 of them have); a "
        "study can only be extended: give more than 3",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 2 --trial 0",
        "error: --epochs 2 for trial 0 of study 'digits', which has trained 3 of 3 epochs; a trial "
        "can only be extended: give more than 3",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 5 --trial 1",
        "error: trial 1 of study 'digits' has failed after 2 epochs, so it cannot be extended; "
        "`sweeper retry digits 1` gives it another attempt",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 5 --trial 7",
        "error: study 'digits' has no trial 7; it has trials 0 to 1 (of 3), which `sweeper status "
        "digits` lists",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 5 --trial 0 --best 1",
        "error: --trial and --best were both given; give one of them",
        2,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 5",
        "error: trial 0 of study 'digits' ended at step 30, and its checkpoint of that step is "
        "missing, so it cannot train further; its checkpoints: step-000000020 (2 epochs). If "
        "they were moved, name their place with --runs-dir or --checkpoints; or extend the "
        "other trials with --trial",
        1,
        "a study that trained",
    ),
    BadInput(
        "extend digits --epochs 5",
        "error: trial 2 of study 'digits' is running; only a stopped study can be extended: "
        "wait, or stop it first (sweeper stop digits)",
        2,
        "a study that runs",
    ),
    BadInput(
        "extend digist --epochs 5",
        "error: the database has no study 'digist'; did you mean 'digits'?",
        2,
        "a study that trained",
    ),
    BadInput(
        "run three.py --epochs 2",
        "error: --epochs 2 for study 'line', which is defined with 3 epochs; a study can only be "
        "extended: give more than 3",
        2,
        "files",
    ),
)
