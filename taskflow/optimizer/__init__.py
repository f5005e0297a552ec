"""Finds strategies."""
