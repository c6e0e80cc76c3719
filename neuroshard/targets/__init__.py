"""Exports of plans to other systems that train embedding tables, and the plans that each system can express."""
