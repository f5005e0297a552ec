"""Train an LSTM text classifier on real text under a strategy that you can swap.

    mpirun -n 4 python examples/rnntc.py                        # of which package is this piece of Python's library?
    mpirun -n 4 python examples/rnntc.py --mapper expert        # layers on different processors
    mpirun -n 4 python examples/rnntc.py --data reviews         # reviews/train/CLASS/*.txt and reviews/test/CLASS/*.txt
    mpirun -n 4 python examples/rnntc.py --data news.csv        # a label and a text in each row
"""

from taskflow.training.networks.rnntc import main

if __name__ == "__main__":
    main()
