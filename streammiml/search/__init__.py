"""Cross validation: search for the settings that do best on bags that a model has not seen."""
