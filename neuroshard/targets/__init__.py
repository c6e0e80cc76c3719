"""Exports of plans to other systems that train embedding tables, and descriptions of the plans that each system
supports.
"""
