"""Files of models and of computed sequences."""
