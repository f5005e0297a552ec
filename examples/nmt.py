"""Train a translation network of LSTM layers with attention under a strategy that you can swap, and let it translate.

    mpirun -n 4 python examples/nmt.py                         # 4 ranks, data parallel
    mpirun -n 4 python examples/nmt.py --mapper expert         # layers on different processors
    mpirun -n 4 python examples/nmt.py --mapper search         # finds a plan first, for 5 seconds
    python examples/nmt.py --processors 4 --language de        # four virtual processors in one process
    python examples/nmt.py --data news.en --data news.de --steps 5000

The default text is what this machine's programs say in English and how their translators put it in another language.
"""

from taskflow.training.networks.nmt import main

if __name__ == "__main__":
    main()
