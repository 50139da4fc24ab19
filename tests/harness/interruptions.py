"""The study that the kill and signal tests interrupt, and what it gives when nobody does."""

import textwrap

from study_files import StudyText

KILL_ALL = """
def kill_all():
    # The command's group, then the trial's, which is another where its server is a forked one.
    os.killpg(int(sys.orig_argv[-2]), signal.SIGKILL)
    os.killpg(os.getpgrp(), signal.SIGKILL)
"""
"""For a study's head: SIGKILL to all that a command has started; its pid is what a fork server is told."""

INTERRUPTED_STUDY = StudyText(
    head=KILL_ALL
    + textwrap.dedent("""
    from sweeper.checkpoint.operations import FileOperations

    # "rename:3" kills the process group inside the third rename of a trial's commits.
    KILL_INSIDE = os.environ.get("SWEEPER_TEST_KILL_INSIDE")

    def kill_inside(operation, count):
        original = getattr(FileOperations, operation)
        done = 0

        def killing(self, *arguments):
            nonlocal done
            done += 1
            if done == count:
                kill_all()
            return original(self, *arguments)

        setattr(FileOperations, operation, killing)

    if KILL_INSIDE:
        kill_inside(KILL_INSIDE.split(":")[0], int(KILL_INSIDE.split(":")[1]))
    """),
    callbacks="""
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.7, patience=4, cooldown=1),
        keras.callbacks.EarlyStopping(
            monitor="loss", patience=25, restore_best_weights=trial.number % 2 == 1
        ),
    """,
    rate='trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)',
    arguments="""objective="val_loss", epochs=80, trials=6, sampler="random",
    checkpoint_every=Every(steps=7)""",
)
"""Six trials of up to 1,600 steps, with a checkpoint at every seventh: in and between epochs."""
