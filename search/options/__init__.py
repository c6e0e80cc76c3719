"""The options of every table: the sharding types, tiers and numbers of equal parts that the table may have, with bytes
and costs; and choices of one option for each table.
"""
