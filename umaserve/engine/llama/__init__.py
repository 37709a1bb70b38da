"""llama.cpp's models, contexts, cells and batches."""
