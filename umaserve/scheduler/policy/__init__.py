"""The rules by which a tick is planned: pure functions of a frozen snapshot."""
