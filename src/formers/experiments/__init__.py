"""Experiments that show one idea each, with real numbers: `formers try NAME`."""
