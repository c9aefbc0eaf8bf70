"""Recurrent layers, alignments and convolutions over packed documents."""
