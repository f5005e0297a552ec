"""Train an LSTM language model on real text under a strategy that you can swap.

    mpirun -n 16 python examples/rnnlm.py                       # 16 ranks, data parallel
    mpirun -n 16 python examples/rnnlm.py --mapper expert       # layers on different processors
    mpirun -n 16 python examples/rnnlm.py --mapper search       # finds a plan first, for 5 seconds
    python examples/rnnlm.py --processors 4                     # four virtual processors in one process
    python examples/rnnlm.py --data book.txt --steps 1000 --save-strategy plan.json

The default text is the source of Python's own standard library, which every machine has.
"""

from taskflow.training.networks.rnnlm import main

if __name__ == "__main__":
    main()
