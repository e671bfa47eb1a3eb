"""`gguflow sparse ...`: ReLU models that compute only the neurons that fire. One file a command."""

SUMMARY = "activation statistics, predictors and placement of ReLU models"
ABOUT = """\
A ReLU model computes only the neurons of its feed-forward layers that fire. `stats` counts how
often each does, `train` learns to predict them, `solve` chooses those that a GPU keeps, `eval`
says what it costs in quality. Without -m, the bundled ReLU model."""
