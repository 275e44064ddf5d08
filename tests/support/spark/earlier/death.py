"""Appended to modules of an earlier release: whoever commits epoch 1 kills itself on the way.

Right after the intent, where the sink has an epoch log, and else after the commit, of which Spark
does not learn then.
"""


def _die_after(kind, name, epoch_at):
    import os
    import signal

    step = getattr(kind, name)

    def step_and_die(self, *arguments):
        done = step(self, *arguments)
        if arguments[epoch_at] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(kind, name, step_and_die)
