"""Cross validation: which settings do best on bags that a model has not seen."""
