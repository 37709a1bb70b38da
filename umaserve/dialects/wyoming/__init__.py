"""The Wyoming protocol, in which Home Assistant talks to voices and to what hears."""
