"""The one kind of error that is the user's to mend: a sentence, never a traceback."""


class UserError(Exception):
    """Says in one sentence what is wrong, where, and what to do. The command line prints it and exits with code 2."""
