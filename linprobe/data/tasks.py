"""The tasks of a feature file and a run: one class a row, or several labels a row."""

MULTICLASS, MULTILABEL = "multiclass", "multilabel"
TASKS = (MULTICLASS, MULTILABEL)
