"""The choice of options for tables: a sharding type, a tier, and the number of equal parts of each table. The modules
list the options that a table may have, estimate the bytes and costs of the options, and choose one option per table.
"""
