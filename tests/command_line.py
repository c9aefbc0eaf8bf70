"""The command line as a test calls it: in this process, with what it prints and its exit code."""

from __future__ import annotations

from formers.cli.main import main


def run_command(capsys, *words):
    """Run formers with these words; return its exit code, what it printed, and what it said on the standard error."""
    try:
        code = main([str(word) for word in words]) or 0
    except SystemExit as end:
        code = end.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err
