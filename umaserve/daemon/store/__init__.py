"""Responses, conversations, files and batches on disk (``--store``)."""
