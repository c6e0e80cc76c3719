"""What runs leave behind, and how methods compare."""
