"""Define the exceptions that end a command."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot be carried out. args: the lines to print. code: the exit code."""

    code = 1


class UsageError(CommandError):
    """The command line, or a file that it is about, has a mistake."""

    code = 2
