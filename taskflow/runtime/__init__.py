"""Executes task graphs: schedules, memory, transports."""
