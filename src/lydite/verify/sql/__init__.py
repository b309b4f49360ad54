"""SQL rewards: a query is right when it agrees with the reference on every database tried.

One database tells few queries apart: a constant, a hard-coded id or a lost condition gives the same
rows by chance. So the database is varied from what the reference itself compares, joins and sorts
by, until queries next to the reference give other rows (:mod:`lydite.verify.sql.prepare`), and a
query has to agree on all of them. Text from a model reaches a parser only below a size limit, and
an engine only in a worker process, read-only (:mod:`lydite.verify.sql.sqlite`,
:mod:`lydite.verify.sql.duck`).
"""
