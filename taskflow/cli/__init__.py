"""The command line: ``taskflow search``, ``simulate``, ``compare``, ``models``, ``machines``."""
