"""Train GShard's mixture of experts on real text under a strategy that you can swap.

    mpirun -n 4 python examples/moe.py                          # 4 ranks, data parallel: every rank has all experts
    mpirun -n 4 python examples/moe.py --mapper megatron        # two of eight experts a rank, tokens go where theirs are
    mpirun -n 4 python examples/moe.py --mapper search          # finds a plan first, for 5 seconds
    python examples/moe.py --data book.txt --level byte --steps 1000

Training says every so many steps (--every N) which share of the words wanted the busiest expert, and how many choices
found their expert full; the validation says the same of other text. The default text is the source of Python's own
standard library, which every machine has.
"""

from taskflow.training.networks.moe import main

if __name__ == "__main__":
    main()
