"""Train Llama on real text under a strategy that you can swap.

    mpirun -n 4 python examples/llama.py                        # 4 ranks, data parallel
    mpirun -n 4 python examples/llama.py --mapper megatron      # layers cut over all ranks, heads with their key heads
    mpirun -n 4 python examples/llama.py --mapper search        # finds a plan first, for 5 seconds
    mpirun -n 4 python examples/llama.py --mapper 'c4 ring' --key-blocks 4   # sequences cut, keys go from rank to rank
    python examples/llama.py --data book.txt --level byte --steps 1000

The default text is the source of Python's own standard library, which every machine has.
"""

from taskflow.training.networks.llama import main

if __name__ == "__main__":
    main()
