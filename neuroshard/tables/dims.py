"""The widths that augmentation and the papers' tasks use."""

from neuroshard.errors import UserError
from neuroshard.schema import DIM_MULTIPLE


def halvings(max_dim: int) -> tuple[int, ...]:
    """(max_dim, max_dim / 2, ..., 4): the widths that column splits by halves lead to.

    Raises:
        UserError: max_dim is not 4 times a power of two.
    """
    if max_dim < DIM_MULTIPLE or max_dim % DIM_MULTIPLE or (max_dim // DIM_MULTIPLE).bit_count() != 1:
        raise UserError(f"max_dim={max_dim} must be 4 times a power of two (4, 8, 16, 32, 64, 128, ...)")
    return tuple(max_dim >> i for i in range((max_dim // DIM_MULTIPLE).bit_length()))
