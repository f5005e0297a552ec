"""Runtimes and checks for tests; nothing else of taskflow imports them."""
