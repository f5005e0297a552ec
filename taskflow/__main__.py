"""Entry point of ``python -m taskflow``: the same as the command ``taskflow``."""

from taskflow.cli.main import main

if __name__ == "__main__":
    main(prog_name="taskflow")
