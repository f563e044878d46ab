"""aimrl: reach goals when the only signal is "not there yet"."""

__version__ = "0.1.0"
