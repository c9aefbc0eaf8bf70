"""The command line: one file per verb, each a typed function."""
