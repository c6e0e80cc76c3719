"""How long to wait for what should come."""

PATIENCE_S = 600.0
"""The one limit of every wait in a test: a guard against hanging, never a statement about speed."""
