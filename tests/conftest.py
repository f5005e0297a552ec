import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start: some test what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
