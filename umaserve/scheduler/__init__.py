"""What the next tick computes, and what comes of it."""
