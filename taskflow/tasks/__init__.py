"""TaskGraph: lowering to it, its order and its timeline."""
