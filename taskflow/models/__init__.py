"""Networks as functions that build operator graphs."""
