"""Train GPT-2 on real text under a strategy that you can swap.

    mpirun -n 4 python examples/gpt.py                          # 4 ranks, data parallel
    mpirun -n 4 python examples/gpt.py --mapper megatron        # layers cut over all ranks
    mpirun -n 4 python examples/gpt.py --mapper search          # finds a plan first, for 5 seconds
    python examples/gpt.py --data book.txt --level byte --steps 1000

The default text is the source of Python's own standard library, which every machine has.
"""

from taskflow.training.networks.gpt import main

if __name__ == "__main__":
    main()
