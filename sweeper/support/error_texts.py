"""Texts of errors of the user's code and of libraries, which may have none, or raise another error."""


def error_text(error: BaseException) -> str:
    """Return ``str(error)``, or a text that names the error that ``str`` raises."""
    try:
        return str(error)
    except BaseException as other:  # it may raise whatever it likes, SystemExit too
        return f"<its __str__ raised {type(other).__name__}>"


def shown_error(error: BaseException) -> str:
    """Return the type and the text of an error; the type alone if it has no text, as of an ``assert``."""
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
