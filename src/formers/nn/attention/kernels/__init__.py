"""Attention kernels in triton, and the functions that call them."""
