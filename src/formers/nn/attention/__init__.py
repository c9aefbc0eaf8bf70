"""Attention: kernels, masks, positions and what is kept between passes."""
