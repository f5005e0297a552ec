"""The command line: ``taskflow search``, ``simulate``, ``compare``, ``explain``, ``train`` and more."""
